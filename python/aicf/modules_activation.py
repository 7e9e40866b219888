"""Activations as modules. `inplace`, where PyTorch takes it, changes nothing here."""

from __future__ import annotations

from typing import Any

from . import activations, ops, regularizers
from . import init as initializers
from .arguments import DTypeName, checked
from .graph import Value
from .module import Module
from .modules_linear import need_sizes
from .modules_simple import NEED, Simple
from .parameters import drawn

__all__ = [
    "CELU",
    "ELU",
    "GELU",
    "GLU",
    "SELU",
    "Hardshrink",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "LeakyReLU",
    "LogSigmoid",
    "LogSoftmax",
    "Mish",
    "PReLU",
    "RReLU",
    "ReLU",
    "ReLU6",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softmin",
    "Softplus",
    "Softshrink",
    "Softsign",
    "Tanh",
    "Tanhshrink",
    "Threshold",
]

_INPLACE = {"inplace": False}
_LAMBDA = {"lambd": 0.5}
_ALPHA = {"alpha": 1.0, "inplace": False}
_DIM = {"dim": NEED}
_AXIS = {"dim": "axis"}


class ReLU(Simple, of=ops.relu, options=_INPLACE):
    """max(x, 0), as torch.nn.ReLU.

    >>> aicf.nn.ReLU()(x).shape
    (4, 3)
    """


class ReLU6(Simple, of=activations.relu6, options=_INPLACE):
    """min(max(x, 0), 6), as torch.nn.ReLU6.

    >>> aicf.nn.ReLU6()(x).shape
    (4, 3)
    """


class LeakyReLU(Simple, of=ops.leaky_relu, options={"negative_slope": 0.01, "inplace": False}):
    """x, times negative_slope where it is negative, as torch.nn.LeakyReLU.

    >>> aicf.nn.LeakyReLU(0.2)(x).shape
    (4, 3)
    """


class ELU(Simple, of=ops.elu, options=_ALPHA):
    """x, or alpha (exp(x) − 1) where it is negative, as torch.nn.ELU.

    >>> aicf.nn.ELU()(x).shape
    (4, 3)
    """


class CELU(Simple, of=activations.celu, options=_ALPHA):
    """x, or alpha (exp(x / alpha) − 1) where it is negative, as torch.nn.CELU.

    >>> aicf.nn.CELU()(x).shape
    (4, 3)
    """


class SELU(Simple, of=activations.selu, options=_INPLACE):
    """The scaled ELU that keeps means and variances, as torch.nn.SELU.

    >>> aicf.nn.SELU()(x).shape
    (4, 3)
    """


class GELU(Simple, of=ops.gelu, options={"approximate": "none"}):
    """x times the normal distribution's share below x, as torch.nn.GELU.

    Args:
        approximate: "none" or "tanh".

    >>> aicf.nn.GELU()(x).shape
    (4, 3)
    """


class SiLU(Simple, of=ops.silu, options=_INPLACE):
    """x sigmoid(x), as torch.nn.SiLU.

    >>> aicf.nn.SiLU()(x).shape
    (4, 3)
    """


class Mish(Simple, of=activations.mish, options=_INPLACE):
    """x tanh(softplus(x)), as torch.nn.Mish.

    >>> aicf.nn.Mish()(x).shape
    (4, 3)
    """


class Sigmoid(Simple, of=ops.sigmoid):
    """1 / (1 + exp(−x)), as torch.nn.Sigmoid.

    >>> aicf.nn.Sigmoid()(x).shape
    (4, 3)
    """


class LogSigmoid(Simple, of=activations.logsigmoid):
    """log(sigmoid(x)), as torch.nn.LogSigmoid.

    >>> aicf.nn.LogSigmoid()(x).shape
    (4, 3)
    """


class Hardsigmoid(Simple, of=activations.hardsigmoid, options=_INPLACE, shown=()):
    """min(max(x / 6 + 1/2, 0), 1), as torch.nn.Hardsigmoid.

    >>> aicf.nn.Hardsigmoid()(x).shape
    (4, 3)
    """


class Hardswish(Simple, of=activations.hardswish, options=_INPLACE, shown=()):
    """x hardsigmoid(x), as torch.nn.Hardswish.

    >>> aicf.nn.Hardswish()(x).shape
    (4, 3)
    """


class Tanh(Simple, of=ops.tanh):
    """tanh(x), as torch.nn.Tanh.

    >>> aicf.nn.Tanh()(x).shape
    (4, 3)
    """


class Hardtanh(
    Simple,
    of=activations.hardtanh,
    options={"min_val": -1.0, "max_val": 1.0, "inplace": False},
    called={"min_val": "min", "max_val": "max"},
):
    """min(max(x, min_val), max_val), as torch.nn.Hardtanh.

    >>> aicf.nn.Hardtanh()(x).shape
    (4, 3)
    """


class Tanhshrink(Simple, of=activations.tanhshrink):
    """x − tanh(x), as torch.nn.Tanhshrink.

    >>> aicf.nn.Tanhshrink()(x).shape
    (4, 3)
    """


class Softshrink(Simple, of=activations.softshrink, options=_LAMBDA):
    """x moved towards 0 by lambd, as torch.nn.Softshrink.

    >>> aicf.nn.Softshrink()(x).shape
    (4, 3)
    """


class Hardshrink(Simple, of=activations.hardshrink, options=_LAMBDA):
    """x, or 0 from −lambd to lambd, as torch.nn.Hardshrink.

    >>> aicf.nn.Hardshrink()(x).shape
    (4, 3)
    """


class Softsign(Simple, of=activations.softsign):
    """x / (1 + |x|), as torch.nn.Softsign.

    >>> aicf.nn.Softsign()(x).shape
    (4, 3)
    """


class Softplus(Simple, of=ops.softplus, options={"beta": 1.0, "threshold": 20.0}):
    """log(1 + exp(beta x)) / beta, x itself from beta x > threshold, as torch.nn.Softplus.

    >>> aicf.nn.Softplus()(x).shape
    (4, 3)
    """


class Threshold(
    Simple, of=activations.threshold, options={"threshold": NEED, "value": NEED, "inplace": False}
):
    """x above a threshold, else a value, as torch.nn.Threshold.

    >>> aicf.nn.Threshold(0.1, 20.0)(x).shape
    (4, 3)
    """


class Softmax(Simple, of=ops.softmax, options=_DIM, called=_AXIS):
    """exp(x) over its sum along an axis, as torch.nn.Softmax.

    >>> aicf.nn.Softmax(dim=-1)(x).shape
    (4, 3)
    """


class LogSoftmax(Simple, of=ops.log_softmax, options=_DIM, called=_AXIS):
    """log(softmax(x)) along an axis, as torch.nn.LogSoftmax.

    >>> aicf.nn.LogSoftmax(dim=-1)(x).shape
    (4, 3)
    """


class Softmin(Simple, of=activations.softmin, options=_DIM, called=_AXIS):
    """softmax(−x) along an axis, as torch.nn.Softmin.

    >>> aicf.nn.Softmin(dim=-1)(x).shape
    (4, 3)
    """


class GLU(Simple, of=activations.glu, options={"dim": -1}, called=_AXIS):
    """The first half times the sigmoid of the second along an axis, as torch.nn.GLU.

    >>> aicf.nn.GLU(dim=0)(x).shape
    (2, 3)
    """


class RReLU(
    Simple, of=regularizers.rrelu, options={"lower": 1 / 8, "upper": 1 / 3, "inplace": False}
):
    """x, times a fresh number from lower to upper where it is negative, when training; else their
    mean, as torch.nn.RReLU.

    >>> aicf.nn.RReLU()(x).shape
    (4, 3)
    """

    def forward(self, x: Value) -> Value:
        return regularizers.rrelu(x, **self._given(), training=self.training)


class PReLU(Module):
    """x, times weight where it is negative, as torch.nn.PReLU; weight begins as `init`.

    Args:
        num_parameters: one for all channels, or one for each.

    >>> aicf.nn.PReLU()(x).shape
    (4, 3)
    """

    @checked
    def __init__(
        self, num_parameters: int = 1, init: float = 0.25, dtype: DTypeName = "float32"
    ) -> None:
        need_sizes("PReLU", num_parameters=num_parameters)
        self.num_parameters = num_parameters
        self.weight: Any = drawn((num_parameters,), initializers.constant(init), dtype)

    def forward(self, x: Value) -> Value:
        return activations.prelu(x, self.weight)

    def extra_repr(self) -> str:
        return f"num_parameters={self.num_parameters}"
