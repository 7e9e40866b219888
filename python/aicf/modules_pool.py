"""Pools as modules, of 1, 2 and 3 axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import pools
from .graph import Value
from .modules_simple import NEED, Simple

__all__ = [
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "LPPool1d",
    "LPPool2d",
    "LPPool3d",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "MaxUnpool1d",
    "MaxUnpool2d",
    "MaxUnpool3d",
]

_WINDOW = {"kernel_size": NEED, "stride": None, "padding": 0}
_MAX = {**_WINDOW, "dilation": 1, "return_indices": False, "ceil_mode": False}
_MEAN_1D = {**_WINDOW, "ceil_mode": False, "count_include_pad": True}
_MEAN = {**_MEAN_1D, "divisor_override": None}
_POWER = {"norm_type": NEED, "kernel_size": NEED, "stride": None, "ceil_mode": False}
_SIZE = {"output_size": NEED}
_SIZE_MAX = {"output_size": NEED, "return_indices": False}


class _Windows(Simple):
    """Windows whose stride is their size where none is given."""

    kernel_size: Any
    stride: Any

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.stride = self.kernel_size if self.stride is None else self.stride


_SHOWN_MAX = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")


class MaxPool1d(_Windows, of=pools.max_pool1d, options=_MAX, shown=_SHOWN_MAX):
    """The largest element of each window of [N, C, L], as torch.nn.MaxPool1d.

    >>> aicf.nn.MaxPool1d(2)(g.input("signal", (2, 3, 8))).shape
    (2, 3, 4)
    """


class MaxPool2d(_Windows, of=pools.max_pool2d, options=_MAX, shown=_SHOWN_MAX):
    """The largest element of each window of [N, C, H, W], as torch.nn.MaxPool2d.

    >>> aicf.nn.MaxPool2d(2)(image).shape
    (1, 2, 4, 4)
    """


class MaxPool3d(_Windows, of=pools.max_pool3d, options=_MAX, shown=_SHOWN_MAX):
    """The largest element of each window of [N, C, D, H, W], as torch.nn.MaxPool3d.

    >>> aicf.nn.MaxPool3d(2)(g.input("volume", (1, 2, 4, 6, 8))).shape
    (1, 2, 2, 3, 4)
    """


_SHOWN_MEAN = ("kernel_size", "stride", "padding")


class AvgPool1d(_Windows, of=pools.avg_pool1d, options=_MEAN_1D, shown=_SHOWN_MEAN):
    """The mean of each window of [N, C, L], as torch.nn.AvgPool1d.

    >>> aicf.nn.AvgPool1d(2)(g.input("signal", (2, 3, 8))).shape
    (2, 3, 4)
    """


class AvgPool2d(_Windows, of=pools.avg_pool2d, options=_MEAN, shown=_SHOWN_MEAN):
    """The mean of each window of [N, C, H, W], as torch.nn.AvgPool2d.

    >>> aicf.nn.AvgPool2d(2)(image).shape
    (1, 2, 4, 4)
    """


class AvgPool3d(_Windows, of=pools.avg_pool3d, options=_MEAN, shown=_SHOWN_MEAN):
    """The mean of each window of [N, C, D, H, W], as torch.nn.AvgPool3d.

    >>> aicf.nn.AvgPool3d(2)(g.input("volume", (1, 2, 4, 6, 8))).shape
    (1, 2, 2, 3, 4)
    """


class LPPool1d(Simple, of=pools.lp_pool1d, options=_POWER):
    """The norm of each window of [N, C, L], as torch.nn.LPPool1d.

    >>> aicf.nn.LPPool1d(2, 2)(g.input("signal", (2, 3, 8))).shape
    (2, 3, 4)
    """


class LPPool2d(Simple, of=pools.lp_pool2d, options=_POWER):
    """The norm of each window of [N, C, H, W], as torch.nn.LPPool2d.

    >>> aicf.nn.LPPool2d(2, 2)(image).shape
    (1, 2, 4, 4)
    """


class LPPool3d(Simple, of=pools.lp_pool3d, options=_POWER):
    """The norm of each window of [N, C, D, H, W], as torch.nn.LPPool3d.

    >>> aicf.nn.LPPool3d(2, 2)(g.input("volume", (1, 2, 4, 6, 8))).shape
    (1, 2, 2, 3, 4)
    """


class AdaptiveAvgPool1d(Simple, of=pools.adaptive_avg_pool1d, options=_SIZE):
    """The means of output_size parts of [N, C, L], as torch.nn.AdaptiveAvgPool1d.

    >>> aicf.nn.AdaptiveAvgPool1d(3)(g.input("signal", (2, 3, 8))).shape
    (2, 3, 3)
    """


class AdaptiveAvgPool2d(Simple, of=pools.adaptive_avg_pool2d, options=_SIZE):
    """The means of parts of [N, C, H, W], as torch.nn.AdaptiveAvgPool2d.

    >>> aicf.nn.AdaptiveAvgPool2d((1, None))(image).shape
    (1, 2, 1, 8)
    """


class AdaptiveAvgPool3d(Simple, of=pools.adaptive_avg_pool3d, options=_SIZE):
    """The means of parts of [N, C, D, H, W], as torch.nn.AdaptiveAvgPool3d.

    >>> aicf.nn.AdaptiveAvgPool3d(2)(g.input("volume", (1, 2, 4, 6, 8))).shape
    (1, 2, 2, 2, 2)
    """


class AdaptiveMaxPool1d(Simple, of=pools.adaptive_max_pool1d, options=_SIZE_MAX):
    """The largest elements of output_size parts of [N, C, L], as torch.nn.AdaptiveMaxPool1d.

    >>> aicf.nn.AdaptiveMaxPool1d(3)(g.input("signal", (2, 3, 8))).shape
    (2, 3, 3)
    """


class AdaptiveMaxPool2d(Simple, of=pools.adaptive_max_pool2d, options=_SIZE_MAX):
    """The largest elements of parts of [N, C, H, W], as torch.nn.AdaptiveMaxPool2d.

    >>> aicf.nn.AdaptiveMaxPool2d(1)(image).shape
    (1, 2, 1, 1)
    """


class AdaptiveMaxPool3d(Simple, of=pools.adaptive_max_pool3d, options=_SIZE_MAX):
    """The largest elements of parts of [N, C, D, H, W], as torch.nn.AdaptiveMaxPool3d.

    >>> aicf.nn.AdaptiveMaxPool3d(2)(g.input("volume", (1, 2, 4, 6, 8))).shape
    (1, 2, 2, 2, 2)
    """


class _Unpool(_Windows, shown=_SHOWN_MEAN):
    def forward(self, x: Value, indices: Value, output_size: Sequence[int] | None = None) -> Any:
        return type(self)._function(x, indices, **self._given(), output_size=output_size)


class MaxUnpool1d(_Unpool, of=pools.max_unpool1d, options=_WINDOW):
    """Puts back what MaxPool1d(return_indices=True) took, as torch.nn.MaxUnpool1d.

    >>> values, places = aicf.nn.MaxPool1d(2, return_indices=True)(g.input("s", (2, 3, 8)))
    >>> aicf.nn.MaxUnpool1d(2)(values, places).shape
    (2, 3, 8)
    """


class MaxUnpool2d(_Unpool, of=pools.max_unpool2d, options=_WINDOW):
    """Puts back what MaxPool2d(return_indices=True) took, as torch.nn.MaxUnpool2d.

    >>> values, places = aicf.nn.MaxPool2d(2, return_indices=True)(image)
    >>> aicf.nn.MaxUnpool2d(2)(values, places).shape
    (1, 2, 8, 8)
    """


class MaxUnpool3d(_Unpool, of=pools.max_unpool3d, options=_WINDOW):
    """Puts back what MaxPool3d(return_indices=True) took, as torch.nn.MaxUnpool3d.

    >>> volume = g.input("volume", (1, 2, 4, 6, 8))
    >>> values, places = aicf.nn.MaxPool3d(2, return_indices=True)(volume)
    >>> aicf.nn.MaxUnpool3d(2)(values, places).shape
    (1, 2, 4, 6, 8)
    """
