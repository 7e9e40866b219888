"""Modules that hold modules: in a row, a list or a mapping."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ._core import GraphError
from .module import Module
from .parameters import Parameter

__all__ = ["Identity", "ModuleDict", "ModuleList", "ParameterDict", "ParameterList", "Sequential"]


def _module(where: str, x: Any) -> Any:
    if not isinstance(x, Module):
        several = f", or several as {where}(*modules)" * (where == "Sequential")
        raise GraphError(f"{where}: got {x!r}; need a Module{several}")
    return x


class Identity(Module):
    """Gives what it takes.

    >>> aicf.nn.Identity()(x) is x
    True
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__()

    def forward(self, x: Any) -> Any:
        return x


class _Row(Module):
    """Modules by their places."""

    def _items(self) -> list[Any]:
        return list(self._modules.values())

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items())

    def _place(self, i: int) -> str:
        n = len(self)
        if not -n <= i < n:
            raise IndexError(f"{type(self).__name__}: index {i} of {n} modules; need [{-n}, {n})")
        return list(self._modules)[i]

    def _of(self, modules: Iterable[Module]) -> Any:
        return type(self)(list(modules))  # type: ignore[call-arg]

    def __getitem__(self, i: int | slice) -> Any:
        if isinstance(i, slice):
            return self._of(self._items()[i])
        return self._modules[self._place(i)]

    def __setitem__(self, i: int, module: Module) -> None:
        self.add_module(self._place(i), _module(type(self).__name__, module))

    def append(self, module: Module) -> Any:
        """Adds a module at the end."""
        self.add_module(str(len(self)), _module(type(self).__name__, module))
        return self

    def extend(self, modules: Iterable[Module]) -> Any:
        """Adds modules at the end."""
        for module in modules:
            self.append(module)
        return self


class Sequential(_Row):
    """Modules one after another: each takes what the one before gave.

    Args:
        modules: in order; or one mapping of names to modules.

    >>> aicf.nn.Sequential(aicf.nn.Linear(3, 5, name="row"), aicf.nn.ReLU())(x).shape
    (4, 5)
    """

    def __init__(self, *modules: Any) -> None:
        super().__init__()
        if len(modules) == 1 and isinstance(modules[0], Mapping):
            for key, module in modules[0].items():
                self.add_module(key, _module("Sequential", module))
        else:
            self.extend(modules)

    def _of(self, modules: Iterable[Module]) -> Any:
        return Sequential(*modules)

    def forward(self, x: Any) -> Any:
        for module in self._items():
            x = module(x)
        return x


class ModuleList(_Row):
    """A list of modules, whose keys are "0", "1", ...

    >>> len(aicf.nn.ModuleList([aicf.nn.Linear(3, 3) for _ in range(2)]))
    2
    """

    def __init__(self, modules: Iterable[Module] | None = None) -> None:
        super().__init__()
        if isinstance(modules, Module) and not isinstance(modules, _Row):
            raise GraphError(f"ModuleList: got {modules!r}; need a list of Modules")
        self.extend(modules or ())


class _Table:
    """What a mapping of parts has, by their keys."""

    _table: Callable[[], dict[str, Any]]

    def __getitem__(self, key: str) -> Any:
        if key not in self._table():
            raise KeyError(key)
        return getattr(self, key)

    def __setitem__(self, key: str, value: Any) -> None:
        setattr(self, key, value)

    def __delitem__(self, key: str) -> None:
        delattr(self, key)

    def __contains__(self, key: object) -> bool:
        return key in self._table()

    def __len__(self) -> int:
        return len(self._table())

    def __iter__(self) -> Iterator[str]:
        return iter(self._table())

    def keys(self) -> Iterable[str]:
        """The names."""
        return self._table().keys()

    def items(self) -> Iterable[tuple[str, Any]]:
        """Names and parts."""
        return [(key, self[key]) for key in self]

    def values(self) -> Iterable[Any]:
        """The parts."""
        return [self[key] for key in self]

    def update(self, parts: Mapping[str, Any]) -> None:
        """Adds those of a mapping."""
        for key, part in parts.items():
            self[key] = part


class ModuleDict(_Table, Module):
    """Modules by name.

    >>> list(aicf.nn.ModuleDict({"up": aicf.nn.Linear(3, 4)}))
    ['up']
    """

    def __init__(self, modules: Mapping[str, Module] | None = None) -> None:
        super().__init__()
        self.update(modules or {})

    def _table(self) -> dict[str, Any]:
        return self._modules

    def __setitem__(self, key: str, value: Any) -> None:
        self.add_module(key, _module("ModuleDict", value))


class ParameterDict(_Table, Module):
    """Parameters by name.

    >>> list(aicf.nn.ParameterDict({"scale": aicf.nn.Parameter([1.0])}))
    ['scale']
    """

    def __init__(self, parameters: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.update(parameters or {})

    def _table(self) -> dict[str, Any]:
        return self._parameters

    def __setitem__(self, key: str, value: Any) -> None:
        self.register_parameter(key, value if isinstance(value, Parameter) else Parameter(value))


class ParameterList(Module):
    """A list of parameters, whose keys are "0", "1", ...

    >>> len(aicf.nn.ParameterList([[1.0], [2.0]]))
    2
    """

    def __init__(self, parameters: Iterable[Any] | None = None) -> None:
        super().__init__()
        for value in parameters or ():
            self.append(value)

    def __len__(self) -> int:
        return len(self._parameters)

    def __getitem__(self, i: int) -> Any:
        return getattr(self, list(self._parameters)[i])

    def __iter__(self) -> Iterator[Any]:
        return (getattr(self, key) for key in self._parameters)

    def append(self, value: Any) -> Any:
        """Adds a parameter at the end."""
        own = value if isinstance(value, Parameter) else Parameter(value)
        self.register_parameter(str(len(self)), own)
        return self
