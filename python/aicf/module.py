"""Modules: layers that own their params and states, named, kept and loaded as PyTorch's are."""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import secrets
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from . import init as initializers
from ._core import Array, DTypeError, GraphError, ShapeError
from .graph import Graph, Value
from .serialize import listed

if TYPE_CHECKING:
    from .step import Step

__all__ = ["Buffer", "Module", "Parameter", "seed"]


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


class Held:
    """An array that modules own. In a graph it stands for a param or a state; its content is that
    of the newest step that has it, and before there is one an array here."""

    trained = False

    def __init__(self, content: Any, dtype: str | None = None) -> None:
        array, own = host_array(content)
        self.dtype: str = own if dtype is None else dtype
        self.shape: tuple[int, ...] = array.shape
        self._start: Any = array
        self._step: tuple[Step, str] | None = None  # whose content is ours, and the name there
        self._array: np.ndarray | None = self._rounded(array)

    def _rounded(self, array: np.ndarray) -> np.ndarray:
        if self.dtype != "bfloat16":
            return np.array(array, self.dtype, order="C")
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
        if dtype != self.dtype:
            raise DTypeError(f"set: content is {dtype}; need {self.dtype} (cast it)")
        write({self: array})

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


# ---- random contents


class _Generator:
    """What draws the contents of new layers."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.Generator(np.random.Philox(seed))


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
    _generator.random = _Generator(number).random
    return number


@contextlib.contextmanager
def _seeded(number: int | None) -> Iterator[None]:
    """Contents made inside are drawn from a generator of their own."""
    if number is None:
        yield
        return
    before = _generator.random
    seed(number)
    try:
        yield
    finally:
        _generator.random = before


def drawn(shape: Sequence[int], start: initializers.Init, dtype: str = "float32") -> Parameter:
    """A Parameter that begins as an initializer of aicf.init says, drawn from `seed`."""
    kind, *numbers = start
    if kind == "uniform":
        low, high = numbers
        array = _generator.random.random(shape, np.float32) * (high - low) + low
    elif kind == "normal":
        mean, std = numbers
        array = _generator.random.standard_normal(shape, np.float32) * std + mean
    else:
        array = np.full(shape, numbers[0] if numbers else 0.0, np.float32)
    made = Parameter(array.astype(np.float32), dtype=dtype)
    made._start = start  # a graph's file says how params begin, not what they hold
    return made


# ---- graphs that are being built


class _Frame(NamedTuple):
    graph: Graph
    path: str | None  # of the module that runs; None where none does


_here = threading.local()


def _frames() -> list[_Frame]:
    if not hasattr(_here, "frames"):
        _here.frames = []
    frames: list[_Frame] = _here.frames
    return frames


@contextlib.contextmanager
def building(graph: Graph, path: str | None = None) -> Iterator[None]:
    """Parameters and buffers that are read from modules inside stand for Values of this graph."""
    frames = _frames()
    frames.append(_Frame(graph, path))
    try:
        yield
    finally:
        frames.pop()


def value_of(graph: Graph, held: Held, path: str) -> Value:
    """What stands for it in a graph, made at its first use under that name."""
    name = graph._held.get(held)
    id = -1 if name is None else graph._core.find(name)
    if id < 0:
        if graph._core.find(path) >= 0:
            raise GraphError(
                f'module: "{path}" is in graph "{graph.name}" already, of another module or one\'s '
                'own; need a name for this module, as in Linear(8, 8, name="second")'
            )
        make = graph.param if held.trained and held.requires_grad else graph.state  # type: ignore[attr-defined]
        id = make(path, held.shape, held.dtype, held._start).id
        graph._held[held] = path
    latest = graph._updates.get(id)
    return Value(graph, id) if latest is None else latest


def _graph_in(tree: Any) -> Graph | None:
    if isinstance(tree, Value):
        return tree.graph
    children = tree.values() if isinstance(tree, Mapping) else tree
    if isinstance(tree, (Mapping, tuple, list)):
        for child in children:
            found = _graph_in(child)
            if found is not None:
                return found
    return None


# ---- Module


@functools.cache
def _own_arguments(cls: type) -> frozenset[str]:
    return frozenset(inspect.signature(cls.__init__).parameters)  # type: ignore[misc]


class _ModuleType(type):
    """Every module takes `name=` and `seed=`, whatever its __init__ takes."""

    def __call__(cls, *args: Any, **named: Any) -> Any:
        own = _own_arguments(cls)
        name = named.pop("name", None) if "name" not in own else None
        number = named.pop("seed", None) if "seed" not in own else None
        with _seeded(number):
            module = super().__call__(*args, **named)
        if name is not None:
            module.name = name
        return module


class Incompatible(NamedTuple):
    """What `load_state_dict(strict=False)` left out."""

    missing_keys: list[str]
    unexpected_keys: list[str]


class Module(metaclass=_ModuleType):
    """A layer or model that owns parameters, buffers and other modules, as torch.nn.Module.

    Modules, Parameters and Buffers that are assigned to attributes are registered by these names.
    `forward` computes with Values; there, an attribute that is a Parameter or Buffer reads as the
    Value that stands for it in the graph of the module's arguments. Keys and layouts of
    `state_dict` are PyTorch's.

    Args:
        name: of a model: what the names of its params in a graph begin with.
        seed: of the random contents of this module and those made inside; None goes on with
            `aicf.nn.seed`.

    >>> class Net(aicf.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.scale = aicf.nn.Parameter([1.0, 1.0, 1.0])
    ...     def forward(self, x):
    ...         return x * self.scale
    >>> Net()(x).shape
    (4, 3)
    """

    training: bool
    _name: str
    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Buffer | None]
    _modules: dict[str, Module | None]
    _parent: tuple[Any, str] | None  # who registered it first, and as what

    def __new__(cls, *args: Any, **named: Any) -> Any:
        self = super().__new__(cls)
        own = {"training": True, "_name": "", "_parent": None}
        vars(self).update(own, _parameters={}, _buffers={}, _modules={})
        return self

    def __init__(self) -> None:
        pass

    def forward(self, *args: Any, **named: Any) -> Any:
        """What the module computes; subclasses say it."""
        raise GraphError(f"{type(self).__name__}: it has no forward; need one")

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Runs `forward` in the graph of the Values among the arguments."""
        frames = _frames()
        graph = _graph_in((args, named))
        if graph is None and frames:
            graph = frames[-1].graph
        if graph is None:
            raise GraphError(
                f"{type(self).__name__}: got no Value; need one at least, such as an input of a "
                "Graph"
            )
        path = self._path()
        outer = frames[-1].path if frames and frames[-1].graph is graph else None
        if outer is not None:  # a part of a module that runs, which has all in the graph
            with self._in(graph, path, outer):
                return self.forward(*args, **named)
        mark, held, updates = graph._core.mark(), dict(graph._held), dict(graph._updates)
        try:
            self.in_graph(graph)
            with self._in(graph, path, ""):
                return self.forward(*args, **named)
        except BaseException:
            graph._core.rollback(mark)
            graph._held, graph._updates = held, updates
            raise

    @contextlib.contextmanager
    def _in(self, graph: Graph, path: str, outer: str) -> Iterator[None]:
        """Nodes that are made inside say the path of the module."""
        part = path.removeprefix(outer + ".") if outer else path
        with building(graph, path), graph._scope(part) if part else contextlib.nullcontext():
            yield

    def in_graph(self, graph: Graph) -> dict[str, Value]:
        """The Values that stand for all parameters and buffers in a graph, by their keys.

        Calling the module makes them; this does so before a loop's body that calls it.

        >>> sorted(aicf.nn.Linear(3, 4, name="in_graph").in_graph(g))
        ['bias', 'weight']
        """
        path = self._path()
        return {
            key: value_of(graph, held, f"{path}.{key}" if path else key)
            for key, held in self._named_held()
        }

    # ---- names

    @property
    def name(self) -> str:
        """What the names of the params of this model begin with; "" for none."""
        return self._name

    @name.setter
    def name(self, name: str) -> None:
        if not isinstance(name, str):
            raise GraphError(f"{type(self).__name__}: name is {name!r}; need a str")
        vars(self)["_name"] = name

    def _path(self) -> str:
        """Where it stands in the model that it is part of."""
        parts: list[str] = []
        module: Module = self
        while module._parent is not None and (parent := module._parent[0]()) is not None:
            parts.append(module._parent[1])
            module = parent
        return ".".join([module._name] * bool(module._name) + parts[::-1])

    def __setattr__(self, key: str, value: Any) -> None:
        for kind, table in ((Parameter, self._parameters), (Module, self._modules),
                            (Buffer, self._buffers)):  # fmt: skip
            if isinstance(value, kind):
                return self._register(key, value, table)
        if key in self._parameters or key in self._modules or key in self._buffers:
            return self._replace(key, value)
        super().__setattr__(key, value)

    def _register(self, key: str, value: Any, table: dict[str, Any]) -> None:
        if not isinstance(key, str) or not key or "." in key:
            raise GraphError(f'{type(self).__name__}: key is {key!r}; need a str without "."')
        if key not in table and (key in vars(self) or hasattr(type(self), key)):
            taken = vars(self).get(key, getattr(type(self), key, None))
            if taken is not None:
                raise GraphError(
                    f'{type(self).__name__}: "{key}" is {taken!r} already; need another name'
                )
            vars(self).pop(key, None)
        for other in (self._parameters, self._modules, self._buffers):
            if other is not table:
                other.pop(key, None)
        self._left(table.get(key))
        table[key] = value
        if isinstance(value, Module) and (value._parent is None or value._parent[0]() is None):
            vars(value)["_parent"] = (weakref.ref(self), key)

    def _left(self, module: Any) -> None:
        """A module that is no longer part of this one has a path of its own."""
        if isinstance(module, Module) and module._parent and module._parent[0]() is self:
            vars(module)["_parent"] = None

    def _replace(self, key: str, value: Any) -> None:
        """Something else where a parameter, a buffer or a module is."""
        if isinstance(value, Value) and key in self._buffers:
            now = getattr(self, key)
            if not isinstance(now, Value) or now.graph is not value.graph:
                raise GraphError(
                    f'{type(self).__name__}: "{key}" got {value!r} while the module does not run '
                    "in its graph; need to assign it in forward"
                )
            held = self._buffers[key]
            assert held is not None
            state = Value(value.graph, value.graph._core.find(value.graph._held[held]))
            value.graph._update(state, lambda _: value)
        elif value is None:
            for table in (self._parameters, self._modules, self._buffers):
                if key in table:
                    self._left(table[key])
                    table[key] = None
        else:
            raise GraphError(
                f'{type(self).__name__}: "{key}" is a part of the module, got {value!r}; need a '
                "Parameter, a Buffer, a Module or None"
            )

    def __getattr__(self, key: str) -> Any:
        own = vars(self)
        for table in ("_parameters", "_buffers"):
            if key in own.get(table, ()):
                held, frames = own[table][key], _frames()
                if held is None or not frames:
                    return held
                path = self._path()
                return value_of(frames[-1].graph, held, f"{path}.{key}" if path else key)
        if key in own.get("_modules", ()):
            return own["_modules"][key]
        near = difflib.get_close_matches(key, dir(self), 1)
        raise AttributeError(
            f"{type(self).__name__} has no attribute {key!r}"
            f"{f' (is it {near[0]!r}?)' if near else ''}"
        )

    def __delattr__(self, key: str) -> None:
        for table in (self._parameters, self._modules, self._buffers):
            if key in table:
                self._left(table.pop(key))
                return
        super().__delattr__(key)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._parameters, *self._buffers, *self._modules]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_parent": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        for key, child in self._modules.items():
            if child is not None and child._parent is None:
                vars(child)["_parent"] = (weakref.ref(self), key)

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Adds a parameter, or a place for one that the module does without."""
        self._register(name, param, self._parameters)

    def register_buffer(self, name: str, tensor: Any, persistent: bool = True) -> None:
        """Adds a buffer that begins as `tensor`; not persistent: `state_dict` leaves it out."""
        made = tensor if tensor is None or isinstance(tensor, Buffer) else Buffer(tensor)
        if made is not None:
            made.persistent = persistent
        self._register(name, made, self._buffers)

    def add_module(self, name: str, module: Module | None) -> None:
        """Adds a module by a name that may be computed."""
        if module is not None and not isinstance(module, Module):
            raise GraphError(f'{type(self).__name__}: "{name}" is {module!r}; need a Module')
        self._register(name, module, self._modules)

    # ---- walks

    def named_modules(
        self, memo: set[Module] | None = None, prefix: str = ""
    ) -> Iterator[tuple[str, Module]]:
        """This module and all inside, each once, with their paths from here."""
        memo = set() if memo is None else memo
        if self in memo:
            return
        memo.add(self)
        yield prefix, self
        for key, child in self._modules.items():
            if child is not None:
                yield from child.named_modules(memo, f"{prefix}.{key}" if prefix else key)

    def modules(self) -> Iterator[Module]:
        """This module and all inside, each once."""
        return (module for _, module in self.named_modules())

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The modules directly inside, each once, with their names."""
        seen = set()
        for key, child in self._modules.items():
            if child is not None and child not in seen:
                seen.add(child)
                yield key, child

    def children(self) -> Iterator[Module]:
        """The modules directly inside."""
        return (child for _, child in self.named_children())

    def _named_held(self, again: bool = False) -> Iterator[tuple[str, Held]]:
        """Parameters, then buffers, of each module; shared ones once, unless `again`."""
        seen: set[Held] = set()
        for prefix, module in self._all_named() if again else self.named_modules():
            for key, held in [*module._parameters.items(), *module._buffers.items()]:
                if held is not None and (again or held not in seen):
                    seen.add(held)
                    yield f"{prefix}.{key}" if prefix else key, held

    def _all_named(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        yield prefix, self
        for key, child in self._modules.items():
            if child is not None:
                yield from child._all_named(f"{prefix}.{key}" if prefix else key)

    def named_parameters(
        self, prefix: str = "", recurse: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """The parameters, each once, with their dotted paths from here."""
        return self._named_of(Parameter, prefix, recurse)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """The parameters, each once."""
        return (held for _, held in self.named_parameters(recurse=recurse))

    def named_buffers(self, prefix: str = "", recurse: bool = True) -> Iterator[tuple[str, Buffer]]:
        """The buffers, each once, with their dotted paths from here."""
        return self._named_of(Buffer, prefix, recurse)

    def buffers(self, recurse: bool = True) -> Iterator[Buffer]:
        """The buffers, each once."""
        return (held for _, held in self.named_buffers(recurse=recurse))

    def _named_of(self, kind: type, prefix: str, recurse: bool) -> Iterator[tuple[str, Any]]:
        for key, held in self._named_held():
            if isinstance(held, kind) and (recurse or "." not in key):
                yield f"{prefix}.{key}" if prefix else key, held

    # ---- modes

    def train(self, mode: bool = True) -> Any:
        """Graphs that are built from now on train: dropout drops, batch norms use the batch."""
        for module in self.modules():
            vars(module)["training"] = bool(mode)
        return self

    def eval(self) -> Any:
        """Graphs that are built from now on evaluate."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Any:
        """Freezes all parameters, or no longer, for the graphs that are built from now on."""
        for held in self.parameters():
            held.requires_grad = bool(requires_grad)
        return self

    def to_host(self) -> Any:
        """Takes a copy of all contents: steps so far keep theirs, the next begins with this one."""
        held = [one for _, one in self._named_held()]
        for one, array in zip(held, read(held), strict=True):
            one._array, one._step = array, None
        return self

    # ---- contents

    def _kept(self) -> dict[str, Held]:
        return {
            key: held
            for key, held in self._named_held(again=True)
            if not isinstance(held, Buffer) or held.persistent
        }

    def state_dict(self) -> dict[str, np.ndarray]:
        """A copy of all parameters and persistent buffers by PyTorch's keys, from the newest step
        that has them. bfloat16 comes as float32, which is exact.

        >>> sorted(aicf.nn.Linear(3, 4).state_dict())
        ['bias', 'weight']
        """
        kept = self._kept()
        return dict(zip(kept, read(list(kept.values())), strict=True))

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Incompatible:
        """Copies in what a `state_dict`, PyTorch's too, holds: here, and into the step that has the
        content. Nothing is written unless all of it fits.

        Args:
            state_dict: tensors of any framework by key.
            strict: False takes those of equal names and leaves the others.

        Returns: the keys that were left out.

        Raises: one error that names all keys that are missing, unexpected or of another shape or
        dtype: GraphError, or ShapeError or DTypeError where it is that alone.
        """
        where = f"{type(self).__name__}.load_state_dict"
        if not isinstance(state_dict, Mapping):
            raise GraphError(f"{where}: got {state_dict!r}; need a mapping of key to array")
        kept = self._kept()
        missing = [key for key in kept if key not in state_dict]
        unexpected = [key for key in state_dict if key not in kept]
        contents: dict[Held, np.ndarray] = {}
        shapes, dtypes = [], []
        for key, held in kept.items():
            if key not in state_dict:
                continue
            array, dtype = host_array(state_dict[key])
            if array.shape != held.shape:
                shapes.append(f'"{key}" has shape {array.shape}, need {held.shape}')
            elif dtype != held.dtype and (held.dtype, dtype) != ("bfloat16", "float32"):
                dtypes.append(f'"{key}" is {dtype}, need {held.dtype}')
            contents[held] = array
        names = []
        if strict and missing:
            names.append(f"missing {_named(missing, unexpected)}")
        if strict and unexpected:
            names.append(f"unexpected {listed(unexpected)}")
        if names or shapes or dtypes:
            kind = GraphError if names else DTypeError if not shapes else ShapeError
            need = "; need exactly the keys of state_dict()" if names else ""
            raise kind(f"{where}: " + "; ".join([*names, *shapes, *dtypes]) + need)
        write(contents)
        return Incompatible(missing, unexpected)

    # ---- looking at it

    def extra_repr(self) -> str:
        """What stands between the brackets of a layer."""
        return ""

    def __repr__(self) -> str:
        lines = [line for line in [self.extra_repr()] if line]
        for key, child in self._modules.items():
            lines.append(f"({key}): " + repr(child).replace("\n", "\n  "))
        name = self._get_name()
        if len(lines) == bool(self.extra_repr()):
            return f"{name}({''.join(lines)})"
        return f"{name}(\n  " + "\n  ".join(lines) + "\n)"

    def _get_name(self) -> str:
        return type(self).__name__


def _named(missing: list[str], unexpected: list[str]) -> str:
    """Missing keys, each with the unexpected one that is most like it."""
    said = []
    for key in missing[:8]:
        near = difflib.get_close_matches(key, unexpected, 1, 0.8)
        said.append(f'"{key}"' + (f' (is it "{near[0]}"?)' if near else ""))
    return ", ".join(said) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")


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


def contents_of(graph: Graph, shared: Sequence[Step]) -> Contents:
    """What a step of the graph begins with; what `share=` gives is left to that."""
    held = {name: one for one, name in graph._held.items() if graph._core.find(name) >= 0}
    given = {name for step in shared for role in ("param", "state") for name in step._leaves(role)}
    homes: dict[int, tuple[Step, dict[str, str]]] = {}
    fresh = {}
    for name, one in held.items():
        if one._step is not None:
            step, there = one._step
            homes.setdefault(id(step), (step, {}))[1][name] = there
        elif name not in given and one._array is not None:
            fresh[name] = packed(one, one._array)
    return Contents(held, list(homes.values()), fresh)
