"""Activations composed of the ops: PyTorch's names, formulas and default values."""

from __future__ import annotations

from ._core import GraphError, ShapeError
from .arguments import checked
from .graph import Value
from .movement import _axis, reshape, split
from .ops import (
    _as,
    _widened,
    abs,
    add,
    clip,
    div,
    elu,
    greater,
    greater_equal,
    less_equal,
    logical_and,
    mul,
    neg,
    sigmoid,
    softmax,
    softplus,
    sub,
    tanh,
    where,
)

__all__ = [
    "celu",
    "glu",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "logsigmoid",
    "mish",
    "prelu",
    "relu6",
    "selu",
    "softmin",
    "softshrink",
    "softsign",
    "tanhshrink",
    "threshold",
]


def relu6(x: Value) -> Value:
    """min(max(x, 0), 6). Its gradient at 0 and 6 is zero.

    >>> aicf.relu6(x).shape
    (4, 3)
    """
    return hardtanh(x, 0.0, 6.0)


def hardtanh(x: Value, min: float = -1.0, max: float = 1.0) -> Value:
    """x limited to [min, max]. Unlike that of clip, its gradient is zero at both limits.

    >>> aicf.hardtanh(x, -2.0, 2.0).shape
    (4, 3)
    """
    if not min <= max:
        raise GraphError(f"hardtanh: min is {min}, max is {max}; need min <= max")
    return where(less_equal(x, min), min, where(greater_equal(x, max), max, x))


def hardsigmoid(x: Value) -> Value:
    """relu6(x + 3) / 6 (Howard et al., 2019).

    >>> aicf.hardsigmoid(x).shape
    (4, 3)
    """
    return _as(div(relu6(add(_widened(x), 3.0)), 6.0), x.dtype)


def hardswish(x: Value) -> Value:
    """x · relu6(x + 3) / 6 (Howard et al., 2019).

    >>> aicf.hardswish(x).shape
    (4, 3)
    """
    wide = _widened(x)
    return _as(div(mul(wide, relu6(add(wide, 3.0))), 6.0), x.dtype)


def selu(x: Value) -> Value:
    """s·x where x > 0, else s·a·(exp(x) − 1), a = 1.67326…, s = 1.05070… (Klambauer et al., 2017).

    >>> aicf.selu(x).shape
    (4, 3)
    """
    scaled = mul(elu(_widened(x), 1.6732632423543772848), 1.0507009873554804934)
    return _as(scaled, x.dtype)


def celu(x: Value, alpha: float = 1.0) -> Value:
    """x where x > 0, else alpha · (exp(x / alpha) − 1) (Barron, 2017).

    >>> aicf.celu(x, 0.5).shape
    (4, 3)
    """
    if not alpha > 0:
        raise GraphError(f"celu: alpha is {alpha}; need alpha > 0")
    wide = _widened(x)
    y = where(greater(wide, 0.0), wide, mul(elu(div(wide, alpha), 1.0), alpha))
    return _as(y, x.dtype)


def mish(x: Value) -> Value:
    """x · tanh(softplus(x)) (Misra, 2019).

    >>> aicf.mish(x).shape
    (4, 3)
    """
    wide = _widened(x)
    return _as(mul(wide, tanh(softplus(wide))), x.dtype)


def logsigmoid(x: Value) -> Value:
    """log(1 / (1 + exp(−x))).

    >>> aicf.logsigmoid(x).shape
    (4, 3)
    """
    return neg(softplus(neg(x)))


def softsign(x: Value) -> Value:
    """x / (1 + |x|).

    >>> aicf.softsign(x).shape
    (4, 3)
    """
    wide = _widened(x)
    return _as(div(wide, add(abs(wide), 1.0)), x.dtype)


def tanhshrink(x: Value) -> Value:
    """x − tanh(x).

    >>> aicf.tanhshrink(x).shape
    (4, 3)
    """
    wide = _widened(x)
    return _as(sub(wide, tanh(wide)), x.dtype)


def softshrink(x: Value, lambd: float = 0.5) -> Value:
    """x moved by `lambd` towards 0, and 0 where |x| <= lambd.

    >>> aicf.softshrink(x).shape
    (4, 3)
    """
    if not lambd >= 0:
        raise GraphError(f"softshrink: lambd is {lambd}; need lambd >= 0")
    return sub(x, clip(x, -lambd, lambd))


def hardshrink(x: Value, lambd: float = 0.5) -> Value:
    """x where |x| > lambd, else 0.

    >>> aicf.hardshrink(x).shape
    (4, 3)
    """
    return where(logical_and(greater_equal(x, -lambd), less_equal(x, lambd)), 0.0, x)


def threshold(x: Value, threshold: float, value: float) -> Value:
    """x where x > threshold, else `value`.

    >>> aicf.threshold(x, 0.1, 20.0).shape
    (4, 3)
    """
    return where(less_equal(x, threshold), value, x)


def prelu(x: Value, weight: Value) -> Value:
    """x where x > 0, else weight · x.

    Args:
        weight: of one element, or one of each channel, axis 1 of x (of rank 1, of each element).

    >>> aicf.prelu(x, g.param("slope", (3,))).shape
    (4, 3)
    """
    axis = min(1, x.ndim - 1)
    channels = x.shape[axis] if x.ndim else 1
    if weight.shape not in ((), (1,), (channels,)):
        raise ShapeError(f"prelu: weight is {weight!r}, x is {x!r}; need [1] or [{channels}]")
    sizes = [1] * x.ndim
    if weight.ndim and weight.shape != (1,):
        sizes[axis] = channels
    return where(greater(x, 0.0), x, mul(x, reshape(weight, sizes)))


def glu(x: Value, axis: int = -1) -> Value:
    """a · sigmoid(b) of the two halves of x along `axis` (Dauphin et al., 2016).

    >>> aicf.glu(y.reshape((2, 6))).shape
    (2, 3)
    """
    at = _axis("glu", x, axis)
    if x.shape[at] % 2:
        raise ShapeError(f"glu: axis {axis} of {x!r}; need an even size")
    a, b = split(x, 2, axis=at)
    return _as(mul(_widened(a), sigmoid(_widened(b))), x.dtype)


def softmin(x: Value, axis: int = -1) -> Value:
    """softmax(−x) along `axis`.

    >>> aicf.softmin(x).shape
    (4, 3)
    """
    return softmax(neg(x), axis)


for _name in __all__:
    globals()[_name] = checked(globals()[_name])
