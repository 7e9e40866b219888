"""Modules: layers that own their params and states, named, kept and loaded as PyTorch's are."""

from __future__ import annotations

import contextlib
import inspect
import threading
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from ._core import DTypeError, GraphError, ShapeError
from .arguments import bound, is_it, placed
from .attributes import recording
from .graph import Graph, Value
from .names import instead_of
from .parameters import Buffer, Held, Parameter, changes, host_array, read, seeded, write
from .serialize import listed

__all__ = ["Module"]


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


def value_of(graph: Graph, held: Held, path: str, kind: str) -> Value:
    """What stands for it in a graph, made at its first use under that name."""
    name = graph._held.get(held)
    id = -1 if name is None else graph._core.find(name)
    if id < 0:
        if graph._core.find(path) >= 0:
            raise placed(
                GraphError(
                    f'{kind}: "{path}" is in graph "{graph.name}" already, of another module or '
                    f'one\'s own; need a name for this module, as in {kind}(..., name="second")'
                )
            )
        make = graph.param if held.trained and held.requires_grad else graph.state
        id = make(path, held.shape, held.dtype, held._start).id
        graph._held.pop(held, None)
        graph._held[held] = path  # the newest is the last
    return graph._latest(Value(graph, id))


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


def _without_self(signature: inspect.Signature) -> inspect.Signature:
    return signature.replace(parameters=list(signature.parameters.values())[1:])


class _ModuleType(type):
    """Every module takes `name=` and `seed=`, whatever its __init__ takes."""

    def __init__(cls, name: str, bases: tuple[type, ...], own: dict[str, Any], **named: Any):
        super().__init__(name, bases, own)
        cls._arguments = frozenset(inspect.signature(cls.__init__).parameters)  # type: ignore[misc]

    def __call__(cls, *args: Any, **named: Any) -> Any:
        own = cls._arguments
        name = named.pop("name", None) if "name" not in own else None
        number = named.pop("seed", None) if "seed" not in own else None
        with seeded(number):
            try:
                module = super().__call__(*args, **named)
            except TypeError:
                makes = inspect.signature(cls.__init__)  # type: ignore[misc]
                bound(cls.__name__, _without_self(makes), args, named)
                raise
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
            error = GraphError(
                f"{type(self).__name__}: got no Value; need a call inside of an aicf.function, "
                "or with an input of a Graph"
            )
            raise placed(error)
        path = self._path()
        outer = frames[-1].path if frames and frames[-1].graph is graph else None
        if outer is not None:  # a part of a module that runs, which has all in the graph
            with self._in(graph, path, outer):
                return self._forward(args, named)
        mark = graph._mark()
        graph._ran[self] = None
        try:
            self.in_graph(graph)
            with self._in(graph, path, ""):
                return self._forward(args, named)
        except BaseException:
            graph._rollback(mark)
            raise

    def _forward(self, args: Any, named: Any) -> Any:
        """What forward gives; its errors say in which layer they were."""
        try:
            return self.forward(*args, **named)
        except (DTypeError, GraphError, ShapeError) as error:
            placed(error)
            if not hasattr(error, "layer"):
                error.layer = self._path()  # type: ignore[union-attr]
                kind = type(self).__name__ if any(self._modules.values()) else repr(self)
                of = f'"{error.layer}", ' * bool(error.layer)  # type: ignore[union-attr]
                error.__init__(f"{error}; in {of}{kind}")  # type: ignore[misc]
            raise
        except TypeError:
            bound(type(self).__name__, inspect.signature(self.forward), args, named)
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
        made: dict[str, Value] = {}
        self._adopt()
        for prefix, module in self.named_modules():
            for key, held in module._own_held():
                path = f"{prefix}.{key}" if prefix else key
                made[path] = value_of(graph, held, module._key(key), type(self).__name__)
        return made

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

    def _above(self) -> Iterator[Module]:
        """The modules that it is part of, the innermost first."""
        module: Module = self
        while module._parent is not None and (parent := module._parent[0]()) is not None:
            yield parent
            module = parent

    def __getattribute__(self, key: str) -> Any:
        value = object.__getattribute__(self, key)
        reads = recording.reads
        if (
            reads is not None
            and key[:1] != "_"
            and key in object.__getattribute__(self, "__dict__")
        ):
            reads.found.setdefault((id(self), key), (self, key, value))
        return value

    def __setattr__(self, key: str, value: Any) -> None:
        for kind, table in ((Parameter, self._parameters), (Module, self._modules),
                            (Buffer, self._buffers)):  # fmt: skip
            if isinstance(value, kind):
                return self._register(key, value, table)
        if key in self._parameters or key in self._modules or key in self._buffers:
            return self._replace(key, value)
        super().__setattr__(key, value)
        changes[0] += 1
        if recording.reads is not None:
            recording.reads.written.add((id(self), key))

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
        changes[0] += 1
        if isinstance(value, Module) and (value._parent is None or value._parent[0]() is None):
            vars(value)["_parent"] = (weakref.ref(self), key)

    def _adopt(self) -> None:
        """Parts whose first owner is gone, or has them no longer, have their paths from here."""
        for module in self.modules():
            for key, child in module._modules.items():
                if child is not None and next(child._above(), None) is None:
                    vars(child)["_parent"] = (weakref.ref(module), key)

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
            value.graph._update(self._state(key), lambda _: value)
        elif value is None:
            changes[0] += 1
            for table in (self._parameters, self._modules, self._buffers):
                if key in table:
                    self._left(table[key])
                    table[key] = None
        else:
            raise GraphError(
                f'{type(self).__name__}: "{key}" is a part of the module, got {value!r}; need a '
                "Parameter, a Buffer, a Module or None"
            )

    def _state(self, key: str) -> Value:
        """The state that stands for a buffer in the graph that is built, as the step begins."""
        graph, held = _frames()[-1].graph, self._buffers[key]
        assert held is not None
        value_of(graph, held, self._key(key), type(self).__name__)
        return Value(graph, graph._core.find(graph._held[held]))

    def _key(self, key: str) -> str:
        path = self._path()
        return f"{path}.{key}" if path else key

    def __getattr__(self, key: str) -> Any:
        own = vars(self)
        for table in ("_parameters", "_buffers"):
            if key in own.get(table, ()):
                held, frames = own[table][key], _frames()
                if held is None or not frames:
                    return held
                return value_of(frames[-1].graph, held, self._key(key), type(self).__name__)
        if key in own.get("_modules", ()):
            return own["_modules"][key]
        raise AttributeError(
            f"{type(self).__name__} has no attribute {key!r}{instead_of(key, dir(self))}"
        )

    def __delattr__(self, key: str) -> None:
        for table in (self._parameters, self._modules, self._buffers):
            if key in table:
                self._left(table.pop(key))
                changes[0] += 1
                return
        super().__delattr__(key)
        changes[0] += 1

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

    def _own_held(self) -> Iterator[tuple[str, Held]]:
        for key, held in [*self._parameters.items(), *self._buffers.items()]:
            if held is not None:
                yield key, held

    def _named_held(self, again: bool = False) -> Iterator[tuple[str, Held]]:
        """Parameters, then buffers, of each module; shared ones once, unless `again`."""
        seen: set[Held] = set()
        for prefix, module in self._all_named() if again else self.named_modules():
            for key, held in module._own_held():
                if again or held not in seen:
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
        changes[0] += 1
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

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Any:
        """Copies in what a `state_dict`, PyTorch's too, holds: here, and into the step that has the
        content. Nothing is written unless all of it fits.

        Args:
            state_dict: tensors of any framework by key.
            strict: False takes those of equal names and leaves the others.

        Returns: the keys that were left out, as missing_keys and unexpected_keys.

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
        said.append(f'"{key}"{is_it(key, unexpected)}')
    return ", ".join(said) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
