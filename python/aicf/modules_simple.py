"""Modules without params: a function and its options, by PyTorch's names and defaults."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from .arguments import is_it
from .module import Module

NEED = inspect.Parameter.empty  # an option without a default


class Simple(Module):
    """A function of Values with the options that the class names.

    A subclass says `of=` the function, `options=` PyTorch's names and defaults in their order,
    `called=` what the function calls them where that differs, "" for those it does without,
    `tensors=` those that are arrays, which become buffers, and `shown=` those that stand in the
    brackets of its repr; None for all.
    """

    _function: ClassVar[Callable[..., Any]]
    _options: ClassVar[Mapping[str, Any]] = {}
    _called: ClassVar[Mapping[str, str]] = {}
    _tensors: ClassVar[tuple[str, ...]] = ()
    _shown: ClassVar[tuple[str, ...] | None] = None

    def __init_subclass__(
        cls,
        of: Callable[..., Any] | None = None,
        options: Mapping[str, Any] | None = None,
        called: Mapping[str, str] | None = None,
        tensors: tuple[str, ...] = (),
        shown: tuple[str, ...] | None = None,
        **named: Any,
    ) -> None:
        super().__init_subclass__(**named)
        if of is not None:
            cls._function = staticmethod(of)
        if options is not None:
            cls._options = options
        cls._called = {"inplace": "", **(cls._called if called is None else called)}
        cls._tensors = tensors or cls._tensors
        cls._shown = cls._shown if shown is None else shown
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        cls.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [inspect.Parameter(name, kind, default=x) for name, x in cls._options.items()]
        )

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__()
        name, options = type(self).__name__, self._options
        for key in named:
            if key not in options:
                raise TypeError(
                    f"{name}: there is no argument {key!r}{is_it(key, options)}; need "
                    f"{', '.join(options)}"
                )
        try:
            given = self.__signature__.bind(*args, **named)
        except TypeError as error:
            raise TypeError(f"{name}: {error}; need {', '.join(options)}") from None
        given.apply_defaults()
        for key, value in given.arguments.items():
            if key in self._tensors:
                self.register_buffer(key, value)
            else:
                setattr(self, key, value)

    def _given(self) -> dict[str, Any]:
        """The options as the function takes them."""
        called = self._called
        return {
            called.get(key, key): getattr(self, key)
            for key in self._options
            if called.get(key, key)
        }

    def forward(self, *args: Any, **named: Any) -> Any:
        return type(self)._function(*args, **named, **self._given())

    def extra_repr(self) -> str:
        shown = self._options if self._shown is None else self._shown
        said = [f"{key}={getattr(self, key)!r}" for key in shown if key != "inplace"]
        if getattr(self, "inplace", False):
            said.append("inplace=True")
        return ", ".join(said)
