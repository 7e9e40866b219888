"""Signals, images and volumes in other sizes, and looked up at places between their elements."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from ._core import DTypeError, GraphError, ShapeError
from .arguments import checked
from .graph import Value
from .indexing import take_along_axis
from .movement import permute, reshape, take, transpose
from .ops import (
    _as,
    _widened,
    add,
    cast,
    clip,
    div,
    floor,
    greater,
    greater_equal,
    less,
    less_equal,
    logical_and,
    matmul,
    mul,
    round,
    sub,
    where,
)
from .pools import _mixed, _no_shares, _pooled

__all__ = [
    "affine_grid",
    "channel_shuffle",
    "grid_sample",
    "interpolate",
    "pixel_shuffle",
    "pixel_unshuffle",
]


def pixel_shuffle(x: Value, upscale_factor: int) -> Value:
    """[..., C·r², H, W] as [..., C, H·r, W·r] (Shi et al., 2016).

    >>> aicf.pixel_shuffle(image.reshape((1, 8, 4, 4)), 2).shape
    (1, 2, 8, 8)
    """
    r = upscale_factor
    if x.ndim < 3 or r < 1 or x.shape[-3] % (r * r):
        raise ShapeError(f"pixel_shuffle: {r} of {x!r}; need [..., C·r², H, W]")
    *lead, c, h, w = x.shape
    n = math.prod(lead)
    y = permute(reshape(x, [n, c // (r * r), r, r, h, w]), [0, 1, 4, 2, 5, 3])
    return reshape(y, [*lead, c // (r * r), h * r, w * r])


def pixel_unshuffle(x: Value, downscale_factor: int) -> Value:
    """[..., C, H·r, W·r] as [..., C·r², H, W]: pixel_shuffle undone.

    >>> aicf.pixel_unshuffle(image, 2).shape
    (1, 8, 4, 4)
    """
    r = downscale_factor
    if x.ndim < 3 or r < 1 or x.shape[-2] % r or x.shape[-1] % r:
        raise ShapeError(f"pixel_unshuffle: {r} of {x!r}; need [..., C, H·r, W·r]")
    *lead, c, h, w = x.shape
    n = math.prod(lead)
    y = permute(reshape(x, [n, c, h // r, r, w // r, r]), [0, 1, 3, 5, 2, 4])
    return reshape(y, [*lead, c * r * r, h // r, w // r])


def channel_shuffle(x: Value, groups: int) -> Value:
    """x[N, C, ...] with the channels of `groups` groups in turns (Zhang et al., 2018).

    >>> aicf.channel_shuffle(image.reshape((1, 8, 4, 4)), 2).shape
    (1, 8, 4, 4)
    """
    if x.ndim < 3 or groups < 1 or x.shape[1] % groups:
        raise ShapeError(
            f"channel_shuffle: groups is {groups}, x is {x!r}; need [N, C, ...] and a divisor of C"
        )
    n, c, *rest = x.shape
    parts = reshape(x, [n, groups, c // groups, math.prod(rest)])
    return reshape(permute(parts, [0, 2, 1, 3]), x.shape)


_MODES = {"nearest": None, "nearest-exact": None, "area": None, "linear": None, "bilinear": 4,
          "bicubic": 4, "trilinear": 5}  # fmt: skip


def interpolate(
    x: Value,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Value:
    """x[N, C, ...] in another size, of one to three axes.

    "linear" and "bicubic" are a product of matrices for each axis: `compile(math=)` says how it
    rounds, and an infinity or NaN spoils its whole axis.

    Args:
        size: of the result; or scale_factor: ⌊size · factor⌋. One number stands for all axes.
        mode: "nearest" = the element at ⌊i / factor⌋, "nearest-exact" at ⌊(i + 1/2) / factor⌋;
            "linear" = between two along each axis, of images and volumes also "bilinear" and
            "trilinear"; "bicubic" = between four of an image; "area" = adaptive_avg_pool.
        align_corners: of "linear" and "bicubic": the outer elements stay where they are, else the
            edges do.
        recompute_scale_factor: the factor is that of the two sizes, not the one given.
        antialias: refused when True.

    >>> aicf.interpolate(image, scale_factor=2).shape
    (1, 2, 16, 16)
    """
    name = "interpolate"
    if mode not in _MODES:
        raise GraphError(f"{name}: mode is {mode!r}; need one of {list(_MODES)}")
    if antialias:
        raise GraphError(f"{name}: antialias is True; need False (average with avg_pool2d before)")
    if align_corners and not mode.endswith(("linear", "cubic")):
        raise GraphError(f'{name}: align_corners is True, mode is {mode!r}; need "linear"')
    if not 3 <= x.ndim <= 5 or _MODES[mode] not in (None, x.ndim):
        raise ShapeError(
            f"{name}: x is {x!r}, mode {mode!r}; need [N, C, ...] of "
            + (f"{_MODES[mode]} axes" if _MODES[mode] else "one to three axes more")
        )
    if (size is None) == (scale_factor is None):
        raise ShapeError(
            f"{name}: size is {size}, scale_factor is {scale_factor}; need one of the two"
        )
    if recompute_scale_factor and size is not None:
        raise GraphError(f"{name}: recompute_scale_factor is True, size is {size}; need a factor")
    axes = range(2, x.ndim)
    given = size if size is not None else scale_factor
    each = list(given) if isinstance(given, Sequence) else [given or 0] * len(axes)
    if len(each) != len(axes):
        raise ShapeError(f"{name}: {len(each)} sizes for {x!r}; need {len(axes)}")
    for axis, new in zip(axes, each, strict=True):
        old = x.shape[axis]
        if not 0 <= new < math.inf:
            raise ShapeError(f"{name}: size or scale_factor has {new}; need finite numbers > 0")
        count = int(new) if size is not None else math.floor(min(old * new, 2.0**62))
        if count < 1 or old < 1:
            raise ShapeError(f"{name}: {count} elements out of {old} of {x!r}; need 1 or more")
        step = old / count if size is not None or recompute_scale_factor else 1 / new
        if mode == "area":
            x = _pooled(name, x, axis, count)
        elif mode.startswith("nearest"):
            if count > 1 << 28:
                raise ShapeError(f"{name}: {count} elements of an axis; need at most 2**28")
            middle = 0.5 if mode == "nearest-exact" else 0.0
            places = np.minimum(np.floor((np.arange(count) + middle) * step), old - 1)
            if count != old or step != 1:
                x = take(x, x.graph.constant(places.astype(np.int64)), axis)
        else:
            shares = _no_shares(name, count, old)
            _share_out(shares, step, bool(align_corners), mode == "bicubic")
            x = _mixed(x, axis, shares)
    return x


def _share_out(shares: np.ndarray, step: float, align_corners: bool, cubic: bool) -> None:
    """Between the old elements beside each new one."""
    new, old = shares.shape
    if align_corners:
        places = np.arange(new) * ((old - 1) / (new - 1) if new > 1 else 0.0)
    else:
        places = (np.arange(new) + 0.5) * step - 0.5
    if not cubic:
        places = np.maximum(places, 0)
    low = np.floor(places).astype(np.int64)
    low = low if cubic else np.minimum(low, old - 1)
    for tap, part in _taps(places - low, cubic):
        np.add.at(shares, (np.arange(new), np.clip(low + tap, 0, old - 1)), part)


def _taps(t: np.ndarray, cubic: bool) -> list[tuple[int, np.ndarray]]:
    """The share of each neighbour of a place at t in [0, 1) behind an element."""
    if not cubic:
        return [(0, 1 - t), (1, t)]
    a = -0.75  # PyTorch's

    def near(d: np.ndarray) -> np.ndarray:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d: np.ndarray) -> np.ndarray:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    return [(-1, far(t + 1)), (0, near(t)), (1, near(1 - t)), (2, far(2 - t))]


def affine_grid(theta: Value, size: Sequence[int], align_corners: bool = False) -> Value:
    """The places that theta[N, 2, 3] gives the elements of images [N, C, H, W], for grid_sample.

    Args:
        theta: or [N, 3, 4], of volumes [N, C, D, H, W]; it is multiplied with (x, y, 1).
        size: of the images.
        align_corners: −1 and 1 are the middles of the outer elements, else their edges.

    >>> aicf.affine_grid(g.param("theta", (1, 2, 3)), (1, 2, 8, 8)).shape
    (1, 8, 8, 2)
    """
    n = len(size) - 2
    if n not in (2, 3) or min(size) < 1 or theta.shape != (size[0], n, n + 1):
        raise ShapeError(
            f"affine_grid: theta is {theta!r}, size {list(size)}; need [N, 2, 3] and [N, C, H, W], "
            "or [N, 3, 4] and [N, C, D, H, W]"
        )
    lines = []
    for m in size[2:]:
        line = (2 * np.arange(m) + 1) / m - 1
        if align_corners:
            line = np.linspace(-1, 1, m) if m > 1 else np.zeros(1)
        lines.append(line)
    places = np.stack([*reversed(np.meshgrid(*lines, indexing="ij")), np.ones(size[2:])], -1)
    wide = _widened(theta)
    base = theta.graph.constant(places.reshape(-1, n + 1).astype(wide.dtype))
    y = matmul(base, transpose(wide))
    return _as(reshape(y, [size[0], *size[2:], n]), theta.dtype)


def grid_sample(
    x: Value,
    grid: Value,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool = False,
) -> Value:
    """x[N, C, H, W] at the places grid[N, oh, ow, 2] -> [N, C, oh, ow]; volumes with three axes.

    A place is (x, y), from −1 to 1 along W and H. Costs a `gather` of each element that is read:
    4 by "bilinear", 8 of volumes, 16 by "bicubic".

    Args:
        mode: "bilinear" = between two along each axis; "bicubic" of images; "nearest", by which no
            place has a gradient.
        padding_mode: what is outside of x: "zeros"; "border", its outer elements; "reflection".
        align_corners: −1 and 1 are the middles of the outer elements, else their edges.

    >>> aicf.grid_sample(image, g.param("places", (1, 3, 5, 2))).shape
    (1, 2, 3, 5)
    """
    name, n = "grid_sample", x.ndim - 2
    if mode not in ("bilinear", "nearest", "bicubic") or (mode == "bicubic" and n == 3):
        raise GraphError(
            f'{name}: mode is {mode!r}; need "bilinear" or "nearest", or "bicubic" of images'
        )
    if padding_mode not in ("zeros", "border", "reflection"):
        raise GraphError(
            f'{name}: padding_mode is {padding_mode!r}; need "zeros", "border" or "reflection"'
        )
    fits = n in (2, 3) and grid.ndim == n + 2 and grid.shape[-1] == n
    if not fits or grid.shape[0] != x.shape[0] or min(x.shape[2:]) < 1:
        raise ShapeError(
            f"{name}: x is {x!r}, grid is {grid!r}; need [N, C, H, W] and [N, oh, ow, 2], or "
            "[N, C, D, H, W] and [N, od, oh, ow, 3]"
        )
    if grid.dtype != x.dtype:
        raise DTypeError(f"{name}: x is {x!r}, grid is {grid!r}; need one dtype (cast it)")
    size, out = x.shape[2:], grid.shape[1:-1]
    count = math.prod(out)
    flat = reshape(_widened(x), [*x.shape[:2], math.prod(size)])
    places = reshape(_widened(grid), [x.shape[0], 1, count, n])
    axes = []
    for a, m in enumerate(size):
        u = add(places[..., n - 1 - a], 1.0)
        u = mul(u, (m - 1) / 2) if align_corners else add(mul(u, m / 2), -0.5)
        if mode != "bicubic":
            u = _brought_in(u, m, padding_mode, align_corners)
        axes.append(_neighbours(u, mode))
    y = None
    for taps in itertools.product(*axes):
        at, share, inside = None, None, None
        for a, (place, part) in enumerate(taps):
            if mode == "bicubic":
                place = _brought_in(place, size[a], padding_mode, align_corners)
            step, last = math.prod(size[a + 1 :]), float(size[a] - 1)
            own = mul(cast(clip(place, 0.0, last), "int64"), step)
            at = own if at is None else add(at, own)
            if padding_mode == "zeros":
                here = logical_and(greater_equal(place, 0.0), less_equal(place, last))
                inside = here if inside is None else logical_and(inside, here)
            if part is not None:
                share = part if share is None else mul(share, part)
        assert at is not None
        term = take_along_axis(flat, at, -1)
        term = term if inside is None else where(inside, term, 0.0)
        term = term if share is None else mul(term, share)
        y = term if y is None else add(y, term)
    assert y is not None
    return _as(reshape(y, [*x.shape[:2], *out]), x.dtype)


def _brought_in(u: Value, size: int, padding_mode: str, align_corners: bool) -> Value:
    """Places outside of an axis, moved inside; flat where they are held at its ends."""
    if padding_mode == "zeros":
        return u
    if padding_mode == "reflection":
        low, span = (0.0, size - 1.0) if align_corners else (-0.5, float(size))
        if not span:
            return mul(u, 0.0)
        far = where(less(u, low), sub(low, u), sub(u, low))
        turns = floor(div(far, span))
        rest = sub(far, mul(turns, span))
        odd = greater(sub(turns, mul(floor(mul(turns, 0.5)), 2.0)), 0.5)
        u = add(where(odd, sub(span, rest), rest), low)
    last = float(size - 1)
    return where(less_equal(u, 0.0), 0.0, where(greater_equal(u, last), last, u))


def _neighbours(u: Value, mode: str) -> list[tuple[Value, Value | None]]:
    """The elements that a place is made of, and the share of each; None: all of it."""
    if mode == "nearest":
        return [(round(u), None)]
    low = floor(u)
    t = sub(u, low)
    if mode == "bilinear":
        return [(low, sub(1.0, t)), (add(low, 1.0), t)]

    def near(d: Value) -> Value:
        return add(mul(mul(sub(mul(d, 1.25), 2.25), d), d), 1.0)

    def far(d: Value) -> Value:
        return add(mul(sub(mul(add(mul(d, -0.75), 3.75), d), 6.0), d), 3.0)

    other = sub(1.0, t)
    return [
        (sub(low, 1.0), far(add(t, 1.0))), (low, near(t)), (add(low, 1.0), near(other)),
        (add(low, 2.0), far(add(other, 1.0))),
    ]  # fmt: skip


for _name in __all__:
    globals()[_name] = checked(globals()[_name])
