"""Shapes, sizes, edges and dropout as modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from . import convolutions, regularizers, resampling
from . import nn_functions as functions
from ._core import ShapeError
from .graph import Value
from .modules_simple import NEED, Simple
from .movement import pad, reshape

__all__ = [
    "AlphaDropout",
    "ChannelShuffle",
    "CircularPad1d",
    "CircularPad2d",
    "CircularPad3d",
    "ConstantPad1d",
    "ConstantPad2d",
    "ConstantPad3d",
    "Dropout",
    "Dropout1d",
    "Dropout2d",
    "Dropout3d",
    "FeatureAlphaDropout",
    "Flatten",
    "Fold",
    "PixelShuffle",
    "PixelUnshuffle",
    "ReflectionPad1d",
    "ReflectionPad2d",
    "ReflectionPad3d",
    "ReplicationPad1d",
    "ReplicationPad2d",
    "ReplicationPad3d",
    "Unflatten",
    "Unfold",
    "Upsample",
    "ZeroPad1d",
    "ZeroPad2d",
    "ZeroPad3d",
]


# ---- shapes and sizes


class Flatten(Simple, options={"start_dim": 1, "end_dim": -1}):
    """Axes start_dim to end_dim as one, as torch.nn.Flatten.

    >>> aicf.nn.Flatten()(image).shape
    (1, 128)
    """

    start_dim: int
    end_dim: int

    def forward(self, x: Value) -> Value:
        first, last = (a + x.ndim * (a < 0) for a in (self.start_dim, self.end_dim))
        if not 0 <= first <= last < x.ndim:
            raise ShapeError(
                f"Flatten: start_dim is {self.start_dim}, end_dim {self.end_dim}, x is {x!r}; need "
                "axes of x in their order"
            )
        return reshape(x, (*x.shape[:first], -1, *x.shape[last + 1 :]))


class Unflatten(Simple, options={"dim": NEED, "unflattened_size": NEED}):
    """Axis dim as several of these sizes, one of which may be -1, as torch.nn.Unflatten.

    >>> aicf.nn.Unflatten(0, (2, 2))(x).shape
    (2, 2, 3)
    """

    dim: int
    unflattened_size: Sequence[int]

    def forward(self, x: Value) -> Value:
        at = self.dim + x.ndim * (self.dim < 0)
        if not 0 <= at < x.ndim:
            raise ShapeError(f"Unflatten: dim is {self.dim}, x is {x!r}; need an axis of x")
        return reshape(x, (*x.shape[:at], *self.unflattened_size, *x.shape[at + 1 :]))


class Upsample(
    Simple,
    of=resampling.interpolate,
    options={
        "size": None,
        "scale_factor": None,
        "mode": "nearest",
        "align_corners": None,
        "recompute_scale_factor": None,
    },
):
    """[N, C, ...] at another size, as torch.nn.Upsample.

    >>> aicf.nn.Upsample(scale_factor=2)(image).shape
    (1, 2, 16, 16)
    """


class PixelShuffle(Simple, of=resampling.pixel_shuffle, options={"upscale_factor": NEED}):
    """Channels as pixels of a larger image, as torch.nn.PixelShuffle.

    >>> aicf.nn.PixelShuffle(2)(g.input("deep", (1, 8, 3, 3))).shape
    (1, 2, 6, 6)
    """


class PixelUnshuffle(Simple, of=resampling.pixel_unshuffle, options={"downscale_factor": NEED}):
    """Pixels as channels of a smaller image, as torch.nn.PixelUnshuffle.

    >>> aicf.nn.PixelUnshuffle(2)(image).shape
    (1, 8, 4, 4)
    """


class ChannelShuffle(Simple, of=resampling.channel_shuffle, options={"groups": NEED}):
    """Channels of groups in turn, as torch.nn.ChannelShuffle.

    >>> aicf.nn.ChannelShuffle(2)(image).shape
    (1, 2, 8, 8)
    """


_BLOCKS = {"kernel_size": NEED, "dilation": 1, "padding": 0, "stride": 1}


class Fold(Simple, of=convolutions.fold, options={"output_size": NEED, **_BLOCKS}):
    """An image as the sum of its blocks, as torch.nn.Fold.

    >>> aicf.nn.Fold((3, 3), 2)(g.input("blocks", (1, 8, 4))).shape
    (1, 2, 3, 3)
    """


class Unfold(Simple, of=convolutions.unfold, options=_BLOCKS):
    """The blocks of an image as columns, as torch.nn.Unfold.

    >>> aicf.nn.Unfold(2)(image).shape
    (1, 8, 49)
    """


# ---- edges


class _Pad(Simple):
    """Edges of the last axes, given as PyTorch does: from the last axis, before and after."""

    _axes: ClassVar[int]
    _mode: ClassVar[str]
    padding: Any
    value: float = 0.0

    def __init_subclass__(cls, axes: int = 0, mode: str = "", **named: Any) -> None:
        super().__init_subclass__(**named)
        cls._axes, cls._mode = axes or getattr(cls, "_axes", 0), mode or getattr(cls, "_mode", "")

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        n = 2 * self._axes
        self.padding = (self.padding,) * n if isinstance(self.padding, int) else self.padding
        if len(self.padding) != n:
            raise ShapeError(
                f"{type(self).__name__}: padding is {self.padding}; need a number or {n} of them"
            )

    def forward(self, x: Value) -> Value:
        if x.ndim < self._axes:
            raise ShapeError(f"{type(self).__name__}: x is {x!r}; need rank >= {self._axes}")
        edges = [tuple(self.padding[i : i + 2]) for i in range(0, 2 * self._axes, 2)][::-1]
        widths = [(0, 0)] * (x.ndim - self._axes) + edges
        return pad(x, widths, value=self.value, mode=self._mode)


_EDGES = {"padding": NEED}
_EDGES_OF = {"padding": NEED, "value": NEED}


class ZeroPad1d(_Pad, axes=1, mode="constant", options=_EDGES):
    """Edges of zeros around the last axis, as torch.nn.ZeroPad1d.

    >>> aicf.nn.ZeroPad1d(1)(g.input("signal", (2, 3, 8))).shape
    (2, 3, 10)
    """


class ZeroPad2d(_Pad, axes=2, mode="constant", options=_EDGES):
    """Edges of zeros around the last 2 axes, as torch.nn.ZeroPad2d.

    >>> aicf.nn.ZeroPad2d(1)(image).shape
    (1, 2, 10, 10)
    """


class ZeroPad3d(_Pad, axes=3, mode="constant", options=_EDGES):
    """Edges of zeros around the last 3 axes, as torch.nn.ZeroPad3d.

    >>> aicf.nn.ZeroPad3d(1)(g.input("volume", (1, 2, 4, 6, 8))).shape
    (1, 2, 6, 8, 10)
    """


class ConstantPad1d(_Pad, axes=1, mode="constant", options=_EDGES_OF):
    """Edges of `value` around the last axis, as torch.nn.ConstantPad1d.

    >>> aicf.nn.ConstantPad1d(1, 2.0)(g.input("signal", (2, 3, 8))).shape
    (2, 3, 10)
    """


class ConstantPad2d(_Pad, axes=2, mode="constant", options=_EDGES_OF):
    """Edges of `value` around the last 2 axes, as torch.nn.ConstantPad2d.

    >>> aicf.nn.ConstantPad2d(1, 2.0)(image).shape
    (1, 2, 10, 10)
    """


class ConstantPad3d(_Pad, axes=3, mode="constant", options=_EDGES_OF):
    """Edges of `value` around the last 3 axes, as torch.nn.ConstantPad3d.

    >>> aicf.nn.ConstantPad3d(1, 2.0)(g.input("volume", (1, 2, 4, 6, 8))).shape
    (1, 2, 6, 8, 10)
    """


class ReflectionPad1d(_Pad, axes=1, mode="reflect", options=_EDGES):
    """x mirrored at its first and last element around the last axis, as torch.nn.ReflectionPad1d.

    >>> aicf.nn.ReflectionPad1d(1)(g.input("signal", (2, 3, 8))).shape
    (2, 3, 10)
    """


class ReflectionPad2d(_Pad, axes=2, mode="reflect", options=_EDGES):
    """x mirrored at its first and last element around the last 2 axes, as torch.nn.ReflectionPad2d.

    >>> aicf.nn.ReflectionPad2d(1)(image).shape
    (1, 2, 10, 10)
    """


class ReflectionPad3d(_Pad, axes=3, mode="reflect", options=_EDGES):
    """x mirrored at its first and last element around the last 3 axes, as torch.nn.ReflectionPad3d.

    >>> aicf.nn.ReflectionPad3d(1)(g.input("volume", (1, 2, 4, 6, 8))).shape
    (1, 2, 6, 8, 10)
    """


class ReplicationPad1d(_Pad, axes=1, mode="edge", options=_EDGES):
    """Edges of the element at the edge around the last axis, as torch.nn.ReplicationPad1d.

    >>> aicf.nn.ReplicationPad1d(1)(g.input("signal", (2, 3, 8))).shape
    (2, 3, 10)
    """


class ReplicationPad2d(_Pad, axes=2, mode="edge", options=_EDGES):
    """Edges of the element at the edge around the last 2 axes, as torch.nn.ReplicationPad2d.

    >>> aicf.nn.ReplicationPad2d(1)(image).shape
    (1, 2, 10, 10)
    """


class ReplicationPad3d(_Pad, axes=3, mode="edge", options=_EDGES):
    """Edges of the element at the edge around the last 3 axes, as torch.nn.ReplicationPad3d.

    >>> aicf.nn.ReplicationPad3d(1)(g.input("volume", (1, 2, 4, 6, 8))).shape
    (1, 2, 6, 8, 10)
    """


class CircularPad1d(_Pad, axes=1, mode="wrap", options=_EDGES):
    """Edges of x again around the last axis, as torch.nn.CircularPad1d.

    >>> aicf.nn.CircularPad1d(1)(g.input("signal", (2, 3, 8))).shape
    (2, 3, 10)
    """


class CircularPad2d(_Pad, axes=2, mode="wrap", options=_EDGES):
    """Edges of x again around the last 2 axes, as torch.nn.CircularPad2d.

    >>> aicf.nn.CircularPad2d(1)(image).shape
    (1, 2, 10, 10)
    """


class CircularPad3d(_Pad, axes=3, mode="wrap", options=_EDGES):
    """Edges of x again around the last 3 axes, as torch.nn.CircularPad3d.

    >>> aicf.nn.CircularPad3d(1)(g.input("volume", (1, 2, 4, 6, 8))).shape
    (1, 2, 6, 8, 10)
    """


# ---- dropout


class _Drop(Simple, options={"p": 0.5, "inplace": False}):
    p: float

    def forward(self, x: Value) -> Value:
        y: Value = type(self)._function(x, self.p, self.training)
        return y


class Dropout(_Drop, of=functions.dropout):
    """In training zeros with probability p, and the rest larger by 1 / (1 − p), as
    torch.nn.Dropout.

    >>> aicf.nn.Dropout(0.1)(x).shape
    (4, 3)
    """


class Dropout1d(_Drop, of=regularizers.dropout1d):
    """`Dropout` of whole channels, as torch.nn.Dropout1d.

    >>> aicf.nn.Dropout1d()(g.input("signal", (2, 3, 8))).shape
    (2, 3, 8)
    """


class Dropout2d(_Drop, of=regularizers.dropout2d):
    """`Dropout` of whole channels, as torch.nn.Dropout2d.

    >>> aicf.nn.Dropout2d()(image).shape
    (1, 2, 8, 8)
    """


class Dropout3d(_Drop, of=regularizers.dropout3d):
    """`Dropout` of whole channels, as torch.nn.Dropout3d.

    >>> aicf.nn.Dropout3d()(g.input("volume", (1, 2, 4, 6, 8))).shape
    (1, 2, 4, 6, 8)
    """


class AlphaDropout(_Drop, of=regularizers.alpha_dropout):
    """Dropout that keeps the mean and variance of SELU's results, as torch.nn.AlphaDropout.

    >>> aicf.nn.AlphaDropout()(x).shape
    (4, 3)
    """


class FeatureAlphaDropout(_Drop, of=regularizers.feature_alpha_dropout):
    """`AlphaDropout` of whole channels, as torch.nn.FeatureAlphaDropout.

    >>> aicf.nn.FeatureAlphaDropout()(image).shape
    (1, 2, 8, 8)
    """
