"""What modules own: arrays that begin here and then live in the newest step that has them."""

from __future__ import annotations

import contextlib
import math
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from . import init as initializers
from ._core import Array, DTypeError, GraphError, ShapeError
from .arguments import is_it
from .graph import Graph

if TYPE_CHECKING:
    from .step import Step

__all__ = ["Buffer", "Parameter", "seed"]


changes = [0]  # counts what may change the graphs that modules make: modes, parts, what is frozen


# ---- what modules own


def _as_bfloat16(values: np.ndarray) -> np.ndarray:
    """The nearest numbers that bfloat16 holds, ties to even, as float32."""
    bits = np.array(values, np.float32, order="C").view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(values), values, rounded.view(np.float32)).astype(np.float32)


def host_array(content: Any) -> tuple[np.ndarray, str]:
    """A tensor of any framework as a NumPy array of its own, and the name of its dtype.

    bfloat16, which NumPy lacks, comes as float32.
    """
    if isinstance(content, Array):
        return content.numpy(), content.dtype
    for away in ("detach", "cpu"):  # PyTorch's tensors may be parts of a graph, or on a device
        content = getattr(content, away, lambda content=content: content)()
    dtype = str(getattr(content, "dtype", "")).removeprefix("torch.")
    if dtype == "bfloat16":
        content = content.float() if hasattr(content, "float") else content.astype("float32")
    if hasattr(content, "__dlpack__") and not isinstance(content, np.ndarray):
        content = np.from_dlpack(content)
    array = np.array(content, order="C")
    if not dtype and array.dtype == np.float64:  # lists of Python's numbers
        array = array.astype(np.float32)
    return array, dtype or array.dtype.name


_OF_ARRAYS = {name for name in dir(Array) if name[0] != "_" and name != "device"}


class Held:
    """An array that modules own. In a graph it stands for a param or a state; its content is that
    of the newest step that has it, and before there is one an array here."""

    trained = False
    requires_grad = False

    def __init__(self, content: Any, dtype: str | None = None) -> None:
        array, own = host_array(content)
        self.dtype: str = own if dtype is None else dtype
        self.shape: tuple[int, ...] = array.shape
        self._start: Any = array
        self._step: tuple[Step, str] | None = None  # whose content is ours, and the name there
        self._array: np.ndarray | None = self._rounded(array)

    def _rounded(self, array: np.ndarray) -> np.ndarray:
        if self.dtype != "bfloat16":
            try:
                return np.array(array, self.dtype, order="C")
            except TypeError:
                raise DTypeError(
                    f'{type(self).__name__}: dtype is {self.dtype!r}; need a name such as "float32"'
                ) from None
        self._start = initializers.zeros() if self._start is array else self._start
        return _as_bfloat16(array)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def numpy(self) -> np.ndarray:
        """A copy of the content; bfloat16 comes as float32, which is exact."""
        return read([self])[0]

    def set(self, content: Any) -> None:
        """Copies in a tensor of any framework, of equal shape and dtype."""
        array, dtype = host_array(content)
        if array.shape != self.shape:
            raise ShapeError(f"set: content has shape {array.shape}; need {self.shape}")
        if dtype != self.dtype and (self.dtype, dtype) != ("bfloat16", "float32"):
            raise DTypeError(f"set: content is {dtype}; need {self.dtype} (cast it)")
        write({self: array})

    def __getitem__(self, key: Any) -> Any:
        return self.numpy()[key]

    def __getattr__(self, name: str) -> Any:
        """What an Array has of NumPy's arrays, of a copy of the content."""
        if name in _OF_ARRAYS:
            return getattr(self.numpy(), name)
        near = "" if name.startswith("_") else is_it(name, dir(self))
        need = "need numpy(), or what an Array has of NumPy's arrays"
        raise AttributeError(
            f"{type(self).__name__} has no attribute {name!r}{near}; {need}", name=name
        )

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_OF_ARRAYS})

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def __getstate__(self) -> dict[str, Any]:
        """Copies, and what pickle keeps, live in no step."""
        return {**self.__dict__, "_array": self.numpy(), "_step": None}

    def __repr__(self) -> str:
        return f"aicf.nn.{type(self).__name__}({list(self.shape)}, {self.dtype})"


class Parameter(Held):
    """A trained array of a module.

    In the `forward` of a module it stands for a Value: a param of the graph, or a state where it
    is frozen. Its content is that of the newest step that was compiled with it.

    Args:
        content: an array of any framework; numbers become float32.
        requires_grad: False freezes it: graphs that are built then do not train it.

    >>> aicf.nn.Parameter([1.0, 2.0]).numpy()
    array([1., 2.], dtype=float32)
    """

    trained = True

    def __init__(self, content: Any, requires_grad: bool = True, dtype: str | None = None) -> None:
        super().__init__(content, dtype)
        self.requires_grad = requires_grad

    def __setattr__(self, key: str, value: Any) -> None:
        super().__setattr__(key, value)
        if key == "requires_grad":
            changes[0] += 1

    def requires_grad_(self, requires_grad: bool = True) -> Parameter:
        """Says whether graphs that are built from now on train it."""
        self.requires_grad = requires_grad
        return self


class Buffer(Held):
    """A state of a module that no optimizer trains, such as a running mean.

    In the `forward` of a module it stands for a Value; assigning one to the attribute says what it
    holds after the step.

    Args:
        content: an array of any framework; numbers become float32.
        persistent: False leaves it out of `state_dict`.

    >>> aicf.nn.Buffer([0.0]).shape
    (1,)
    """

    def __init__(self, content: Any, persistent: bool = True, dtype: str | None = None) -> None:
        super().__init__(content, dtype)
        self.persistent = persistent


def _by_step(held: Sequence[Held]) -> dict[int, tuple[Step, list[Held]]]:
    groups: dict[int, tuple[Step, list[Held]]] = {}
    for one in held:
        if one._step is not None:
            groups.setdefault(id(one._step[0]), (one._step[0], []))[1].append(one)
    return groups


def read(held: Sequence[Held]) -> list[np.ndarray]:
    """Copies of contents; those that one step holds are of one moment."""
    found: dict[Held, np.ndarray] = {}
    for step, ones in _by_step(held).values():
        arrays = step._read_all([one._step[1] for one in ones])  # type: ignore[index]
        found.update(zip(ones, (array.numpy() for array in arrays), strict=True))
    return [found[one] if one in found else one._array.copy() for one in held]  # type: ignore[union-attr]


def write(contents: Mapping[Held, np.ndarray]) -> None:
    """Copies in contents that fit."""
    for step, ones in _by_step(list(contents)).values():
        step._write_all({one._step[1]: packed(one, contents[one]) for one in ones})  # type: ignore[index]
    for one, array in contents.items():
        if one._step is None:
            one._array = one._rounded(array)


def packed(held: Held, array: np.ndarray) -> Any:
    """A content as steps take it."""
    if held.dtype != "bfloat16":
        return np.array(array, order="C")
    return (_as_bfloat16(array).view(np.uint32) >> 16).astype(np.uint16).tobytes()


class AtHome:
    """Contents that no step has yet, as files take them from a step."""

    def __init__(self, held: Mapping[str, Held]) -> None:
        self._held = held

    def _array(self, name: str) -> Held:
        return self._held[name]

    def _storage(self, name: str) -> int:
        return id(self._held[name])

    def _read_all(self, names: Iterable[str]) -> list[Held]:
        return [self._held[name] for name in names]

    def _write_all(self, contents: Mapping[str, Any]) -> None:
        for name, content in contents.items():
            held = self._held[name]
            if held.dtype == "bfloat16":  # its bytes
                halves = np.frombuffer(content, np.uint16).astype(np.uint32)
                content = (halves << 16).view(np.float32).reshape(held.shape)
            write({held: np.array(content, order="C")})


# ---- random contents


class _Generator:
    """What draws the contents of new layers."""

    def __init__(self, seed: int) -> None:
        self.bits = np.random.Philox(seed)  # whose bits NumPy keeps from version to version


_generator = _Generator(0)


def seed(number: int | None = None) -> int:
    """Begins the random contents of the modules made from now on anew; programs begin with 0.

    Args:
        number: None draws one that is new in each run.

    Returns: the number.

    >>> aicf.nn.seed(3)
    3
    """
    number = secrets.randbits(63) if number is None else number
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 2**64:
        raise GraphError(f"seed: number is {number!r}; need an int in [0, 2**64), or None")
    _generator.bits = _Generator(number).bits
    return number


@contextlib.contextmanager
def seeded(number: int | None) -> Iterator[None]:
    """Contents made inside are drawn from a generator of their own."""
    if number is None:
        yield
        return
    before = _generator.bits
    seed(number)
    try:
        yield
    finally:
        _generator.bits = before


def _uniform(count: int) -> np.ndarray:
    """Numbers in [0, 1) of 53 random bits each."""
    bits: np.ndarray = _generator.bits.random_raw(count)
    return (bits >> np.uint64(11)) * 2.0**-53


def drawn(shape: Sequence[int], start: initializers.Init, dtype: str = "float32") -> Parameter:
    """A Parameter that begins as an initializer of aicf.init says, drawn from `seed`."""
    kind, *numbers = start
    count = math.prod(shape)
    if kind == "uniform":
        low, high = numbers
        array = _uniform(count) * (high - low) + low
    elif kind == "normal":  # Box-Muller
        mean, std = numbers
        radius = np.sqrt(-2.0 * np.log(1.0 - _uniform(count)))
        array = radius * np.cos(2.0 * math.pi * _uniform(count)) * std + mean
    else:
        array = np.full(count, numbers[0] if numbers else 0.0)
    array = array.reshape(shape)
    made = Parameter(array.astype(np.float32), dtype=dtype)
    made._start = start  # a graph's file says how params begin, not what they hold
    return made


# ---- steps


class Contents(NamedTuple):
    """Where a step of a graph finds what modules own."""

    held: dict[str, Held]  # by the name in the graph
    homes: list[tuple[Step, dict[str, str]]]  # steps that hold some, by the names here and there
    fresh: dict[str, Any]  # what begins with the step

    def device(self, asked: str) -> str:
        """Where they are, for "auto"; another device is an error."""
        for step, names in self.homes:
            if asked == "auto":
                return step.device
            if step.device != asked and (asked, step.device) != ("cuda", "cuda:0"):
                raise GraphError(
                    f'compile: "{next(iter(names))}" of a module lives on {step.device}, device '
                    f'is "{asked}"; need one device, or to_host() of the module before'
                )
        return asked

    def settle(self, step: Step) -> None:
        """From now on the step holds the contents."""
        for name, one in self.held.items():
            one._step, one._array = (step, name), None


def contents_of(graph: Graph, shared: Sequence[Step], replaced: Iterable[str] = ()) -> Contents:
    """What a step of the graph begins with; what `share=` gives is left to that, and `params=`
    replaces what it names.

    Raises: GraphError where a module and `share=` hold different numbers under one name.
    """
    held = {name: one for one, name in graph._held.items() if graph._core.find(name) >= 0}
    given = {
        name: step for step in shared for role in ("param", "state") for name in step._leaves(role)
    }
    homes: dict[int, tuple[Step, dict[str, str]]] = {}
    fresh = {}
    for name, one in held.items():
        if one._step is not None:
            step, there = one._step
            homes.setdefault(id(step), (step, {}))[1][name] = there
        elif name in given:
            if name not in replaced:
                _check_equal(name, one, given[name])
        elif one._array is not None:
            fresh[name] = packed(one, one._array)
    return Contents(held, list(homes.values()), fresh)


def _check_equal(name: str, held: Held, step: Step) -> None:
    """Refuses to drop what a module holds for what a step of share= has under its name."""
    theirs = step._array(name)
    if (theirs.shape, theirs.dtype) != (held.shape, held.dtype) or held._array is None:
        return  # an error of its own
    if theirs.numpy().tobytes() != held._array.tobytes():
        raise GraphError(
            f'compile: "{name}" is a {type(held).__name__} of a module with numbers of its own, '
            "and the step of share= holds others under that name; need the step's first, "
            "module.load_state_dict(step.state_dict(), strict=False), or a name= for the module"
        )
