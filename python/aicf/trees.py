"""Nested arguments and results of functions: what an array is, and what belongs to the key."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ._core import Array, GraphError
from .arguments import _dtype
from .files import shown
from .graph import Value
from .parameters import Held, host_array


class Leaf(NamedTuple):
    """An array among the arguments: an input of the step."""

    shape: tuple[int, ...]
    dtype: str


class Static(NamedTuple):
    """What else is among them: a part of the key, known while the function is traced."""

    type: Any  # of a tuple's parts one by one, as 1, 1.0 and True are equal
    value: Any


class Branch(NamedTuple):
    """A tuple, a list or a dict."""

    type: type
    keys: tuple[Any, ...]  # of a dict
    children: tuple[Any, ...]


_dtype_names: dict[Any, str] = {}


def leaf_of(x: Any) -> Leaf:
    """The shape of an array of whatever library and NumPy's name of its dtype; of a float, too."""
    if type(x) is float:
        return Leaf((), "float32")
    dtype = x.dtype
    name = _dtype_names.get(dtype)
    if name is None:
        _dtype_names[dtype] = name = _dtype(dtype)
    return Leaf(tuple(x.shape), name)


def is_array(x: Any) -> bool:
    """Arrays of any library and NumPy's scalars."""
    return hasattr(x, "shape") and hasattr(x, "dtype") and not isinstance(x, (Value, Held, type))


def flatten(where: str, path: str, tree: Any, leaves: list[Any], names: list[str]) -> Any:
    """What a call is recognised by; its arrays and their names go to the lists."""
    if type(tree) is float or is_array(tree):
        leaves.append(tree)
        names.append(path)
        return leaf_of(tree)
    if isinstance(tree, Mapping):
        keys = tuple(sorted(tree, key=lambda key: (type(key).__name__, key)))
        if not all(isinstance(key, (str, int)) for key in keys):
            raise GraphError(f"{where}: {shown(path)} has the keys {keys}; need strs or ints")
        return Branch(
            dict,
            keys,
            tuple(flatten(where, f"{path}.{key}", tree[key], leaves, names) for key in keys),
        )
    if isinstance(tree, (tuple, list)):
        return Branch(
            type(tree),
            (),
            tuple(flatten(where, f"{path}.{i}", x, leaves, names) for i, x in enumerate(tree)),
        )
    if isinstance(tree, Value):
        raise GraphError(
            f"{where}: {shown(path)} is {tree!r} of graph {shown(tree.graph.name)}; need arrays, "
            "or a call inside of a function that is traced"
        )
    return static_of(where, path, tree)


def static_of(where: str, path: str, x: Any) -> Static:
    """A part of the key."""
    try:
        hash(x)
    except (TypeError, ValueError):  # the latter of a memoryview
        raise GraphError(
            f"{where}: {shown(path)} is a {type(x).__name__}, no array and without a hash; "
            "need arrays, nested tuples, lists and dicts of these, or what has a hash"
        ) from None
    nan = type(x) is float and x != x  # unequal to itself: one stands for all
    return Static(_told(x), math.nan if nan else x)


def _told(x: Any) -> Any:
    """What tells values apart that are equal."""
    if isinstance(x, tuple):
        return type(x), *map(_told, x)
    if isinstance(x, frozenset):
        return type(x), frozenset((one, _told(one)) for one in x)
    return (type(x), repr(x)) if isinstance(x, (float, complex)) else type(x)


def unflatten(spec: Any, values: Iterator[Any]) -> Any:
    """The arguments with the Values that stand for their arrays."""
    if isinstance(spec, Leaf):
        return next(values)
    if isinstance(spec, Static):
        return spec.value
    children = [unflatten(child, values) for child in spec.children]
    if spec.type is dict:
        return dict(zip(spec.keys, children, strict=True))
    return _sequence(spec.type, children)


def _sequence(kind: type, children: list[Any]) -> Any:
    return kind(*children) if hasattr(kind, "_fields") else kind(children)


class Results:
    """What a function returned when it was traced, to be made anew of the outputs of a step."""

    def __init__(self, where: str, tree: Any) -> None:
        self.values: dict[str, Value] = {}
        self._where, self._tree = where, tree
        self._spec = self._taken("", tree)
        self.single = self._spec if isinstance(self._spec, str) else None

    def _taken(self, path: str, tree: Any) -> Any:
        if tree is None:
            return None
        if isinstance(tree, Value):
            name = path or "result"
            if name in self.values:
                raise GraphError(
                    f"{self._where}: {shown(name)} of the result is there twice; need keys whose "
                    "paths differ"
                )
            self.values[name] = tree
            return name
        if isinstance(tree, Mapping):
            return dict, {key: self._taken(self._under(path, key), x) for key, x in tree.items()}
        if isinstance(tree, (tuple, list)):
            return type(tree), [self._taken(self._under(path, i), x) for i, x in enumerate(tree)]
        what = f"{shown(path)} of the result" if path else "the result"
        raise GraphError(
            f"{self._where}: {what} is {tree!r}; need Values, None, or nested tuples, lists and "
            "dicts of these"
        )

    @staticmethod
    def _under(path: str, key: Any) -> str:
        return f"{path}.{key}" if path else str(key)

    def made(self, outputs: Any) -> Any:
        """The same nest of outputs."""
        return self._made(self._spec, outputs)

    def _made(self, spec: Any, outputs: Any) -> Any:
        if spec is None:
            return None
        if isinstance(spec, str):
            return outputs[spec]
        kind, children = spec
        if kind is dict:
            return {key: self._made(child, outputs) for key, child in children.items()}
        return _sequence(kind, [self._made(child, outputs) for child in children])


def spelled(spec: Any, path: str = "") -> dict[str, str]:
    """What a call is recognised by, as text by the path of each part."""
    if isinstance(spec, Leaf):
        return {path: f"{spec.dtype}{list(spec.shape)}"}
    if isinstance(spec, Static):
        return {path: repr(spec.value)}
    keys = spec.keys or range(len(spec.children))
    found = {} if spec.children else {path: spec.type.__name__}
    for key, child in zip(keys, spec.children, strict=True):
        found.update(spelled(child, f"{path}.{key}" if path else str(key)))
    return found


def with_leaves(spec: Any, leaves: Iterator[Leaf]) -> Any:
    """The same nest with other arrays."""
    if isinstance(spec, Leaf):
        return next(leaves)
    if isinstance(spec, Static):
        return spec
    return spec._replace(children=tuple(with_leaves(child, leaves) for child in spec.children))


def on_host(array: Any) -> bool:
    """Whether NumPy may read it where it lies."""
    device = getattr(array, "__dlpack_device__", None)
    return device is None or isinstance(array, Array) or device()[0] == 1


def as_dtype(array: Any, dtype: str) -> Any:
    """An array of another dtype, where it lies; on the host what a step takes for one."""
    if hasattr(array, "new_zeros"):  # PyTorch's
        import torch

        return array.detach().to(getattr(torch, dtype))
    if not on_host(array):
        return array.astype(dtype)
    array, _ = host_array(array)
    return array.tolist() if dtype == "bfloat16" else array.astype(dtype)
