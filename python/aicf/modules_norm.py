"""Norms as modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from . import init as initializers
from . import nn_functions
from ._core import ShapeError
from .arguments import DTypeName, checked
from .graph import Value
from .module import Module
from .modules_linear import need_sizes
from .modules_simple import NEED, Simple
from .movement import expand_dims, squeeze
from .ops import cast
from .parameters import drawn

__all__ = [
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "GroupNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LayerNorm",
    "LocalResponseNorm",
    "RMSNorm",
]


class _Affine(Module):
    """weight of ones and bias of zeros, or neither."""

    weight: Any
    bias: Any

    def _make(self, shape: Sequence[int], affine: bool, bias: bool, dtype: str) -> None:
        ones, zeros = initializers.ones(), initializers.zeros()
        self.register_parameter("weight", drawn(shape, ones, dtype) if affine else None)
        self.register_parameter("bias", drawn(shape, zeros, dtype) if affine and bias else None)


class _Running(_Affine):
    """Channels that may keep running means and variances, of x of `_ranks`."""

    _ranks: ClassVar[tuple[int, ...]]
    running_mean: Any
    running_var: Any
    num_batches_tracked: Any
    _kept_in: str

    def __init_subclass__(cls, ranks: tuple[int, ...] = (), **named: Any) -> None:
        super().__init_subclass__(**named)
        cls._ranks = ranks or getattr(cls, "_ranks", ())

    def _channels(
        self,
        num_features: int,
        eps: float,
        momentum: float | None,
        affine: bool,
        track: bool,
        bias: bool,
        dtype: str,
    ) -> None:
        need_sizes(type(self).__name__, num_features=num_features)
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track
        self._make((num_features,), affine, bias, dtype)
        self._kept_in = "float64" if dtype == "float64" else "float32"  # of 16 bits too
        kept = {
            "running_mean": np.zeros(num_features, self._kept_in),
            "running_var": np.ones(num_features, self._kept_in),
            "num_batches_tracked": np.int64(0),
        }
        for key, start in kept.items():
            self.register_buffer(key, start if track else None)

    def _check(self, x: Value) -> None:
        if x.ndim not in self._ranks:
            need = " or ".join(str(rank) for rank in self._ranks)
            raise ShapeError(f"{type(self).__name__}: x is {x!r}; need rank {need}")

    def _running(self) -> tuple[Any, Any]:
        """The states, which training moves on, or what they hold."""
        if not self.track_running_stats:
            return None, None
        if self.training:
            return self._state("running_mean"), self._state("running_var")
        return self.running_mean, self.running_var

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"track_running_stats={self.track_running_stats}"
        )


class _BatchNorm(_Running):
    @checked
    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        bias: bool = True,
        dtype: DTypeName = "float32",
    ) -> None:
        self._channels(num_features, eps, momentum, affine, track_running_stats, bias, dtype)

    def forward(self, x: Value) -> Value:
        self._check(x)
        momentum: Any = 0.0 if self.momentum is None else self.momentum
        if self.training and self.track_running_stats:
            self.num_batches_tracked = self.num_batches_tracked + 1
            if self.momentum is None:
                momentum = 1.0 / cast(self.num_batches_tracked, self._kept_in)
        return nn_functions.batch_norm(
            x, *self._running(), self.weight, self.bias,
            self.training or not self.track_running_stats, momentum, self.eps,
        )  # fmt: skip


class BatchNorm1d(_BatchNorm, ranks=(2, 3)):
    """Each channel of [N, C] or [N, C, L] with mean 0 and variance 1, times weight plus bias, as
    torch.nn.BatchNorm1d.

    In training these are the batch's; the buffers running_mean and running_var move towards it by
    `momentum`, and serve in evaluation. A graph that calls it twice moves them twice.

    Args:
        momentum: None makes the buffers means of all batches so far.
        track_running_stats: False keeps no buffers: the batch's own serve in evaluation too.

    >>> aicf.nn.BatchNorm1d(3)(x).shape
    (4, 3)
    """


class BatchNorm2d(_BatchNorm, ranks=(4,)):
    """As `BatchNorm1d` of [N, C, H, W], as torch.nn.BatchNorm2d.

    >>> aicf.nn.BatchNorm2d(2)(image).shape
    (1, 2, 8, 8)
    """


class BatchNorm3d(_BatchNorm, ranks=(5,)):
    """As `BatchNorm1d` of [N, C, D, H, W], as torch.nn.BatchNorm3d.

    >>> aicf.nn.BatchNorm3d(2)(g.input("volume", (1, 2, 5, 6, 7))).shape
    (1, 2, 5, 6, 7)
    """


class _InstanceNorm(_Running):
    @checked
    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        bias: bool = True,
        dtype: DTypeName = "float32",
    ) -> None:
        self._channels(num_features, eps, momentum, affine, track_running_stats, bias, dtype)

    def forward(self, x: Value) -> Value:
        self._check(x)
        alone = x.ndim == min(self._ranks)
        y = nn_functions.instance_norm(
            expand_dims(x, 0) if alone else x, self.weight, self.bias, self.eps,
            *self._running(), self.training or not self.track_running_stats, self.momentum or 0.0,
        )  # fmt: skip
        return squeeze(y, 0) if alone else y


class InstanceNorm1d(_InstanceNorm, ranks=(2, 3)):
    """Each channel of each sample of [N, C, L] or [C, L] with mean 0 and variance 1, as
    torch.nn.InstanceNorm1d; options as of `BatchNorm1d`.

    >>> aicf.nn.InstanceNorm1d(3)(g.input("signal", (2, 3, 7))).shape
    (2, 3, 7)
    """


class InstanceNorm2d(_InstanceNorm, ranks=(3, 4)):
    """As `InstanceNorm1d` of [N, C, H, W], as torch.nn.InstanceNorm2d.

    >>> aicf.nn.InstanceNorm2d(2)(image).shape
    (1, 2, 8, 8)
    """


class InstanceNorm3d(_InstanceNorm, ranks=(4, 5)):
    """As `InstanceNorm1d` of [N, C, D, H, W], as torch.nn.InstanceNorm3d.

    >>> aicf.nn.InstanceNorm3d(2)(g.input("volume", (1, 2, 5, 6, 7))).shape
    (1, 2, 5, 6, 7)
    """


class GroupNorm(_Affine):
    """Each of num_groups groups of channels of [N, C, ...] with mean 0 and variance 1, as
    torch.nn.GroupNorm.

    >>> aicf.nn.GroupNorm(1, 2)(image).shape
    (1, 2, 8, 8)
    """

    @checked
    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        bias: bool = True,
        dtype: DTypeName = "float32",
    ) -> None:
        need_sizes("GroupNorm", num_groups=num_groups, num_channels=num_channels)
        if num_channels % num_groups:
            raise ShapeError(
                f"GroupNorm: num_channels is {num_channels}, num_groups {num_groups}; need a "
                "divisor of the channels"
            )
        self.num_groups, self.num_channels = num_groups, num_channels
        self.eps, self.affine = eps, affine
        self._make((num_channels,), affine, bias, dtype)

    def forward(self, x: Value) -> Value:
        return nn_functions.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}"


class LayerNorm(_Affine):
    """The last axes, of these sizes, with mean 0 and variance 1, times weight plus bias, as
    torch.nn.LayerNorm.

    >>> aicf.nn.LayerNorm(3)(x).shape
    (4, 3)
    """

    @checked
    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        dtype: DTypeName = "float32",
    ) -> None:
        sizes = [normalized_shape] if isinstance(normalized_shape, int) else normalized_shape
        self.normalized_shape = tuple(sizes)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        self._make(self.normalized_shape, elementwise_affine, bias, dtype)

    def forward(self, x: Value) -> Value:
        own = self.weight, self.bias
        return nn_functions.layer_norm(x, self.normalized_shape, *own, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"
        )


class RMSNorm(_Affine):
    """The last axes, of these sizes, over the root of their mean square, times weight, as
    torch.nn.RMSNorm; eps None is the dtype's machine epsilon.

    >>> aicf.nn.RMSNorm(3)(x).shape
    (4, 3)
    """

    @checked
    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        dtype: DTypeName = "float32",
    ) -> None:
        sizes = [normalized_shape] if isinstance(normalized_shape, int) else normalized_shape
        self.normalized_shape = tuple(sizes)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        start = initializers.ones()
        own = drawn(self.normalized_shape, start, dtype) if elementwise_affine else None
        self.register_parameter("weight", own)

    def forward(self, x: Value) -> Value:
        return nn_functions.rms_norm(x, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"
        )


class LocalResponseNorm(
    Simple,
    of=nn_functions.local_response_norm,
    options={"size": NEED, "alpha": 1e-4, "beta": 0.75, "k": 1.0},
):
    """x over a power of the mean square of channels around one's own, as
    torch.nn.LocalResponseNorm.

    >>> aicf.nn.LocalResponseNorm(2)(image).shape
    (1, 2, 8, 8)
    """
