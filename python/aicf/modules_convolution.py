"""Convolutions as modules, of 1, 2 and 3 axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from . import convolutions
from ._core import GraphError, ShapeError
from .arguments import DTypeName, checked
from .graph import Value
from .module import Module
from .modules_linear import fan_in_uniform, need_sizes
from .movement import pad
from .parameters import drawn

__all__ = [
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
]


def _each(where: str, name: str, size: int | Sequence[int], n: int) -> tuple[int, ...]:
    sizes = (size,) * n if isinstance(size, int) else tuple(size)
    if len(sizes) != n:
        raise ShapeError(f"{where}: {name} is {size}; need a number or {n} of them")
    return sizes


class _Convolution(Module):
    """What all have: `_function` over `_axes` axes, weight and bias."""

    _function: ClassVar[Callable[..., Any]]
    _axes: ClassVar[int]
    weight: Any
    bias: Any

    def __init_subclass__(cls, axes: int = 0, of: Any = None, **named: Any) -> None:
        super().__init_subclass__(**named)
        if axes:
            cls._axes, cls._function = axes, staticmethod(of)

    def _make(self, shape: Sequence[int], bias: bool, dtype: str) -> None:
        """A weight [out, in, ...], or [in, out, ...], and a bias of out_channels."""
        start = fan_in_uniform(math.prod(shape[1:]))
        self.weight = drawn(shape, start, dtype)
        self.register_parameter("bias", drawn((self.out_channels,), start, dtype) if bias else None)

    def _channels(self, in_channels: int, out_channels: int, groups: int) -> None:
        name = type(self).__name__
        need_sizes(name, in_channels=in_channels, out_channels=out_channels, groups=groups)
        if in_channels % groups or out_channels % groups:
            raise ShapeError(
                f"{name}: in_channels is {in_channels}, out_channels {out_channels}, groups "
                f"{groups}; need groups that divides both"
            )
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups

    def extra_repr(self) -> str:
        said = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"
        said += f", stride={self.stride}"
        for key, plain in self._plain().items():
            if getattr(self, key) != plain:
                said += f", {key}={getattr(self, key)}"
        return said + (", bias=False" if self._parameters["bias"] is None else "")

    def _plain(self) -> dict[str, Any]:
        zeros, ones = (0,) * self._axes, (1,) * self._axes
        return {"padding": zeros, "dilation": ones, "output_padding": zeros, "groups": 1}


class _Conv(_Convolution):
    @checked
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] | str = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        dtype: DTypeName = "float32",
    ) -> None:
        name, n = type(self).__name__, self._axes
        self._channels(in_channels, out_channels, groups)
        if padding_mode not in ("zeros", "reflect", "replicate", "circular"):
            raise GraphError(
                f'{name}: padding_mode is {padding_mode!r}; need "zeros", "reflect", "replicate" '
                'or "circular"'
            )
        if isinstance(padding, str) and padding not in ("same", "valid"):
            raise GraphError(f'{name}: padding is {padding!r}; need sizes, "same" or "valid"')
        self.kernel_size = _each(name, "kernel_size", kernel_size, n)
        self.stride = _each(name, "stride", stride, n)
        self.padding: str | tuple[int, ...] = (
            padding if isinstance(padding, str) else _each(name, "padding", padding, n)
        )
        self.dilation = _each(name, "dilation", dilation, n)
        self.output_padding = (0,) * n
        self.padding_mode = padding_mode
        self._make((out_channels, in_channels // groups, *self.kernel_size), bias, dtype)

    def forward(self, x: Value) -> Value:
        padding = self.padding
        if self.padding_mode != "zeros":
            x, padding = pad(x, self._edges(x), mode=self.padding_mode), (0,) * self._axes
        options = (self.stride, padding, self.dilation, self.groups)
        y: Value = type(self)._function(x, self.weight, self.bias, *options)
        return y

    def _edges(self, x: Value) -> list[tuple[int, int]]:
        if isinstance(self.padding, str):
            more = [
                d * (k - 1) if self.padding == "same" else 0
                for k, d in zip(self.kernel_size, self.dilation, strict=True)
            ]
            edges = [(p // 2, p - p // 2) for p in more]
        else:
            edges = [(p, p) for p in self.padding]
        return [(0, 0)] * (x.ndim - self._axes) + edges

    def extra_repr(self) -> str:
        mode = "" if self.padding_mode == "zeros" else f", padding_mode={self.padding_mode}"
        return super().extra_repr() + mode


class Conv1d(_Conv, axes=1, of=convolutions.conv1d):
    """A convolution of [N, C, L] as torch.nn.Conv1d, with a weight [out, in / groups, k].

    weight and bias begin uniform in ±1/sqrt(in / groups · k).

    Args:
        padding: a size, "same" or "valid"; padding_mode: "zeros", "reflect", "replicate" or
            "circular".

    >>> aicf.nn.Conv1d(3, 5, 2)(g.input("signal", (2, 3, 7))).shape
    (2, 5, 6)
    """


class Conv2d(_Conv, axes=2, of=convolutions.conv2d):
    """A convolution of [N, C, H, W] as torch.nn.Conv2d, with a weight [out, in / groups, kh, kw].

    weight and bias begin uniform in ±1/sqrt(in / groups · kh · kw).

    Args: as of `Conv1d`, one for each axis or one for both.

    >>> aicf.nn.Conv2d(2, 4, 3, padding=1)(image).shape
    (1, 4, 8, 8)
    """


class Conv3d(_Conv, axes=3, of=convolutions.conv3d):
    """A convolution of [N, C, D, H, W] as torch.nn.Conv3d; as `Conv2d` with a third axis.

    >>> aicf.nn.Conv3d(2, 4, 3)(g.input("volume", (1, 2, 5, 6, 7))).shape
    (1, 4, 3, 4, 5)
    """


class _ConvTranspose(_Convolution):
    @checked
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        output_padding: int | Sequence[int] = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: int | Sequence[int] = 1,
        padding_mode: str = "zeros",
        dtype: DTypeName = "float32",
    ) -> None:
        name, n = type(self).__name__, self._axes
        self._channels(in_channels, out_channels, groups)
        if padding_mode != "zeros":
            raise GraphError(f'{name}: padding_mode is {padding_mode!r}; need "zeros"')
        self.kernel_size = _each(name, "kernel_size", kernel_size, n)
        self.stride = _each(name, "stride", stride, n)
        self.padding = _each(name, "padding", padding, n)
        self.output_padding = _each(name, "output_padding", output_padding, n)
        self.dilation = _each(name, "dilation", dilation, n)
        self._make((in_channels, out_channels // groups, *self.kernel_size), bias, dtype)

    def forward(self, x: Value, output_size: Sequence[int] | None = None) -> Value:
        more = self.output_padding if output_size is None else self._more(x, output_size)
        options = (self.stride, self.padding, more, self.groups, self.dilation)
        y: Value = type(self)._function(x, self.weight, self.bias, *options)
        return y

    def _more(self, x: Value, output_size: Sequence[int]) -> tuple[int, ...]:
        """The output_padding that makes these sizes."""
        n = self._axes
        wanted = tuple(output_size)[-n:]
        axes = zip(
            x.shape[-n:], self.stride, self.padding, self.dilation, self.kernel_size, strict=True
        )
        least = [(size - 1) * s - 2 * p + d * (k - 1) + 1 for size, s, p, d, k in axes]
        more = tuple(want - low for want, low in zip(wanted, least, strict=False))
        if len(more) != n or any(not 0 <= m < s for m, s in zip(more, self.stride, strict=True)):
            most = [low + s - 1 for low, s in zip(least, self.stride, strict=True)]
            raise ShapeError(
                f"{type(self).__name__}: output_size is {list(output_size)} of {x!r}; need "
                f"{least} to {most}"
            )
        return more


class ConvTranspose1d(_ConvTranspose, axes=1, of=convolutions.conv_transpose1d):
    """What takes the result of a Conv1d to its input's shape, as torch.nn.ConvTranspose1d, with a
    weight [in, out / groups, k].

    weight and bias begin uniform in ±1/sqrt(out / groups · k). `forward` takes an output_size.

    >>> aicf.nn.ConvTranspose1d(3, 5, 2, stride=2)(g.input("signal", (2, 3, 7))).shape
    (2, 5, 14)
    """


class ConvTranspose2d(_ConvTranspose, axes=2, of=convolutions.conv_transpose2d):
    """As `ConvTranspose1d` of [N, C, H, W], as torch.nn.ConvTranspose2d.

    >>> aicf.nn.ConvTranspose2d(2, 4, 2, stride=2)(image).shape
    (1, 4, 16, 16)
    """


class ConvTranspose3d(_ConvTranspose, axes=3, of=convolutions.conv_transpose3d):
    """As `ConvTranspose1d` of [N, C, D, H, W], as torch.nn.ConvTranspose3d.

    >>> aicf.nn.ConvTranspose3d(2, 4, 2)(g.input("volume", (1, 2, 5, 6, 7))).shape
    (1, 4, 6, 7, 8)
    """
