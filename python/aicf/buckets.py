"""Axes whose size varies: padded to one of a few sizes, with a mask of what was given."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from ._core import Array, GraphError, ShapeError
from .arguments import checked
from .files import shown
from .graph import Value
from .module import _frames
from .trees import Leaf, on_host


class Bucket:
    """The sizes that an axis is padded to, and what of it was given.

    One Bucket on several axes says that they have one size. In the function that is traced, and
    nowhere else, it gives Values: `mask()`, `count()`, and sums and means of what was given.

    Args:
        sizes: ascending; a call takes the least that its axis fits in.
        name: of the input that holds the count.

    >>> rows = aicf.Bucket(16, 32, 64)
    >>> rows.sizes
    (16, 32, 64)
    """

    def __init__(self, *sizes: int, name: str = "rows") -> None:
        if (
            not sizes
            or not all(isinstance(size, int) and size > 0 for size in sizes)
            or list(sizes) != sorted(set(sizes))
        ):
            raise GraphError(f"Bucket: sizes are {sizes}; need ascending ints above 0")
        if not isinstance(name, str):
            raise GraphError(f"Bucket: name is {name!r}; need a str")
        self.sizes = sizes
        self.name = name

    def __repr__(self) -> str:
        return f"aicf.Bucket({', '.join(map(str, self.sizes))}, name={self.name!r})"

    def padded(self, size: int) -> int:
        """The size that an axis of this size is padded to."""
        for one in self.sizes:
            if size <= one:
                return one
        raise ShapeError(
            f"Bucket {shown(self.name)}: an axis has {size}; need at most {self.sizes[-1]}, or a "
            "larger size among those of the Bucket"
        )

    # ---- in a function that is traced

    def _value(self) -> Value:
        frames = _frames()
        if not frames or self not in frames[-1].graph._counts:
            raise GraphError(
                f"Bucket {shown(self.name)}: no argument of a function that is traced has it; need "
                "it in buckets= of aicf.function, and a use inside of that"
            )
        return frames[-1].graph._counts[self]

    def _check_axis(self, what: str, x: Value, axis: int) -> None:
        """Of another size than the padded one, it is not the axis of which the count tells."""
        size = self._value().graph._padded[self]
        if not -x.ndim <= axis < x.ndim or x.shape[axis] != size:
            raise ShapeError(
                f"Bucket.{what}: axis is {axis}, x is {x!r}; need an axis of size {size}, to which "
                f"Bucket {shown(self.name)} has padded; for others there is mask(size)"
            )

    def count(self) -> Value:
        """int32, rank 0: how many elements of the axis were given."""
        return self._value()

    @checked
    def mask(self, size: int) -> Value:
        """bool [size]: which elements of an axis of that size were given."""
        from .ops import less

        count = self._value()
        return less(count.graph.constant(np.arange(size, dtype=np.int32)), count)

    @checked
    def sum(self, x: Value, axis: int = 0) -> Value:
        """The sum of all elements of x that were given, of which `axis` is padded."""
        from .ops import sum, where

        self._check_axis("sum", x, axis)
        shape = [1] * x.ndim
        shape[axis] = x.shape[axis]
        given = self.mask(x.shape[axis]).reshape(shape)
        return sum(where(given, x, 0.0))

    @checked
    def mean(self, x: Value, axis: int = 0) -> Value:
        """The mean of all elements of x that were given, of which `axis` is padded."""
        from .ops import cast, div

        self._check_axis("mean", x, axis)
        total = self.sum(x, axis)
        others = math.prod(x.shape) // max(x.shape[axis], 1)
        return div(total, cast(self._value(), total.dtype) * float(others))

    @checked
    def crop(self, x: Value, axis: int = 0) -> Value:
        """x itself; where the function returns it, its result has of `axis` what was given, as a
        NumPy array."""
        self._check_axis("crop", x, axis)
        crops = self._value().graph._crops.setdefault(x.id, [])
        if others := [bucket for at, bucket in crops if at == axis % x.ndim and bucket != self]:
            raise GraphError(
                f"Bucket.crop: axis {axis} of {x!r} is cropped by Bucket {shown(others[0].name)} "
                "already; need another axis"
            )
        crops.append((axis % x.ndim, self))
        return x


Axes = dict[str, dict[int, Bucket]]  # by the pattern of a name, then by axis


def read_buckets(where: str, given: Any) -> Axes:
    """`buckets=` of a function: a Bucket stands for that of axis 0, a tuple for those by axis."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise GraphError(f"{where}: buckets is {given!r}; need a mapping of argument to Bucket")
    found: Axes = {}
    for name, one in given.items():
        axes = {0: one} if isinstance(one, Bucket) else one
        if isinstance(axes, Sequence):
            axes = {axis: bucket for axis, bucket in enumerate(axes) if bucket is not None}
        if (
            not isinstance(name, str)
            or not isinstance(axes, Mapping)
            or not all(type(a) is int and isinstance(b, Bucket) for a, b in axes.items())
        ):
            raise GraphError(
                f"{where}: buckets has {name!r}: {one!r}; need a name, and a Bucket or several by "
                "axis"
            )
        found[name] = dict(axes)
    return found


class Padding:
    """How the arrays of one call are padded, and how much of each axis was given."""

    def __init__(
        self, where: str, axes: Axes, names: Sequence[str], leaves: Sequence[Leaf]
    ) -> None:
        self.counts: dict[Bucket, int] = {}
        self.shapes: list[tuple[int, ...]] = []
        self._where, self._names = where, tuple(names)
        used: set[str] = set()
        for name, leaf in zip(names, leaves, strict=True):
            shape = list(leaf.shape)
            for pattern, by_axis in axes.items():
                if not fnmatchcase(name, pattern):
                    continue
                used.add(pattern)
                for axis, bucket in by_axis.items():
                    if not -len(shape) <= axis < len(shape):
                        raise ShapeError(
                            f"{where}: buckets has axis {axis} of {shown(name)}, whose shape is "
                            f"{leaf.shape}; need an axis of it"
                        )
                    size = leaf.shape[axis]
                    if self.counts.setdefault(bucket, size) != size:
                        raise ShapeError(
                            f"{where}: axis {axis} of {shown(name)} has {size}, another of Bucket "
                            f"{shown(bucket.name)} {self.counts[bucket]}; need equal sizes"
                        )
                    shape[axis] = bucket.padded(size)
            self.shapes.append(tuple(shape))
        if unused := [pattern for pattern in axes if pattern not in used]:
            raise GraphError(
                f"{where}: buckets has {shown(unused[0])}, the arrays are {list(names)}; need one "
                "of these"
            )

    def padded(self, leaves: Sequence[Any]) -> list[Any]:
        """The arrays, behind them as zeros what is missing; then the counts."""
        made = []
        for name, leaf, shape in zip(self._names, leaves, self.shapes, strict=True):
            if tuple(getattr(leaf, "shape", ())) == shape:
                made.append(leaf)
                continue
            made.append(_padded(self._where, name, leaf, shape))
        return [*made, *self.counts.values()]


def _padded(where: str, name: str, array: Any, shape: tuple[int, ...]) -> Any:
    """The array, behind it zeros, where it lies and of its dtype; NumPy's of one on the host."""
    given = tuple(map(slice, array.shape))
    if hasattr(array, "new_zeros"):  # PyTorch's
        whole = array.new_zeros(shape)
        whole[given] = array.detach()
        return whole
    if on_host(array):
        exact = isinstance(array, Array) and array.dtype == "bfloat16"  # comes as float32
        array = np.asarray(array)
        whole = np.zeros(shape, array.dtype)
        whole[given] = array
        return whole.tolist() if exact else whole
    if not hasattr(array, "__array_namespace__"):
        raise GraphError(
            f"{where}: {shown(name)} is a {type(array).__name__} on a GPU, of shape "
            f"{list(array.shape)}; need it padded to {list(shape)}, or a tensor of PyTorch or JAX"
        )
    of = array.__array_namespace__()
    for axis, size in enumerate(shape):
        missing = list(array.shape)
        missing[axis] = size - missing[axis]
        if missing[axis]:
            rest = of.zeros(missing, dtype=array.dtype, device=array.device)
            array = of.concat([array, rest], axis=axis)
    return array
