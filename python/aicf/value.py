"""A value of a graph: what its operators and attributes say, and what it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from . import _core
from .arguments import Same, not_elements, placed
from .names import instead

if TYPE_CHECKING:
    from ._methods import Methods  # what aicf.ops adds
    from .graph import Graph
else:
    Methods = type("Methods", (), {"__slots__": ()})

Operand: TypeAlias = "Value | float | np.ndarray"  # float: any number
Data: TypeAlias = Any  # a Value or a NumPy array, of which `checked` makes a constant


class Value(Methods):
    """One value of a graph: a name for data, not data. Operators and methods append nodes."""

    __slots__ = ("graph", "id")
    __array_ufunc__ = None  # NumPy must not take over `array * value`

    def __init__(self, graph: Graph, id: int) -> None:
        self.graph = graph
        self.id = id
        if graph._building:
            graph._building[-1].append(self)

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes, outermost first."""
        return self.graph._core.shape(self.id)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def dtype(self) -> str:
        """NumPy's name: "float32", "bfloat16", "bool", ... It equals the dtypes of NumPy, PyTorch
        and JAX."""
        return self.graph._core.dtype(self.id)

    @property
    def name(self) -> str:
        """The name it was given, or what its op calls its output."""
        return self.graph._core.value_name(self.id)

    @property
    def role(self) -> str:
        """input, param, state, constant or temp."""
        return self.graph._core.role(self.id)

    def __repr__(self) -> str:
        if self.id < 0:
            return "aicf.Value(of a body that is built)"
        return f"aicf.Value({self.graph._core.describe(self.id)} {self.name!r})"

    def __hash__(self) -> int:
        return hash((id(self.graph), self.id))

    def __eq__(self, other: object) -> Any:
        if isinstance(other, Value):
            return Same(other.graph is self.graph and other.id == self.id)
        if isinstance(other, (int, float, np.generic)) or hasattr(other, "__dlpack__"):
            raise not_elements()
        return NotImplemented

    def __ne__(self, other: object) -> Any:
        same = self.__eq__(other)
        return same if same is NotImplemented else Same(not same)

    if TYPE_CHECKING:  # what aicf.ops adds

        def _binary(self, other: Operand, /) -> Value: ...
        def _unary(self) -> Value: ...
        def __getitem__(self, key: object, /) -> Value: ...

        __add__ = __sub__ = __mul__ = __truediv__ = __pow__ = __matmul__ = _binary
        __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rpow__ = __rmatmul__ = _binary
        __lt__ = __le__ = __gt__ = __ge__ = _binary
        __floordiv__ = __mod__ = __rfloordiv__ = __rmod__ = _binary
        __lshift__ = __rshift__ = __rlshift__ = __rrshift__ = _binary
        __and__ = __or__ = __xor__ = __rand__ = __ror__ = __rxor__ = _binary
        __neg__ = __abs__ = __invert__ = _unary
        T: Value
        mT: Value

    def _no_data(self, asked: str, instead: str) -> Exception:
        text = self.graph._core.describe(self.id)
        return placed(
            _core.GraphError(
                f"{asked} of value {text}: it has no data while the graph is built; {instead}"
            )
        )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            from . import __all__ as functions

            known = [key for key in dir(type(self)) if not key.startswith("_")]
            near = instead(name, known, [f"aicf.{key}" for key in functions])
            raise AttributeError(f"Value: there is no {name!r}{near}", name=name, obj=self)

    def __bool__(self) -> bool:
        raise self._no_data(
            "bool", "use aicf.where to choose by it, aicf.equal to compare, or & and | to combine"
        )

    def __float__(self) -> float:
        raise self._no_data("float", "make it an output and read it after a step")

    def __int__(self) -> int:
        raise self._no_data("int", "make it an output and read it after a step")

    def __len__(self) -> int:
        raise self._no_data("len", "use value.shape[0]")

    def __iter__(self) -> Any:
        raise self._no_data("iteration", "use aicf functions over an axis")

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise self._no_data("array", "make it an output and read it after a step")


def is_float(x: Value) -> bool:
    return x.dtype.startswith(("float", "bfloat"))
