"""What becomes of the operands that functions of Values are given."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _core
from .arguments import Same, not_elements
from .value import Operand, Value


def _operands(where: str, *operands: Operand) -> list[Value]:
    values = [x for x in operands if isinstance(x, Value)]
    if any(isinstance(x, Same) for x in operands):
        raise not_elements()
    if not values:
        raise _core.GraphError(f"{where}: got {operands!r}; need at least one Value")
    graph = values[0].graph
    result = []
    for x in operands:
        if not isinstance(x, Value):
            # Among several Values the last one gives the dtype: where(condition, x, 0.0).
            x = _constant(where, graph, x, values[-1].dtype)
        graph._id(x, where)
        result.append(x)
    return result


def _constant(where: str, graph: Any, x: Any, dtype: str) -> Value:
    """A number or an array; float64 takes the dtype of the Values beside it, as a number does."""
    if not isinstance(x, np.ndarray):
        return _number(where, graph, x, dtype)
    if x.dtype != np.float64 or dtype not in ("float32", "float16", "bfloat16"):
        return Value(graph, graph._here().constant(x, None))
    if dtype != "bfloat16":
        return Value(graph, graph._here().constant(x.astype(dtype), None))
    from .ops import cast

    return cast(Value(graph, graph._here().constant(x, None)), dtype)


def _number(where: str, graph: Any, number: int | float, dtype: str) -> Value:
    if isinstance(number, int) and abs(number) > 2**53:  # float() would round it
        if dtype != "int64" or not -(2**63) <= number < 2**63:
            text = str(number) if number.bit_length() < 200 else f"{number.bit_length()} bits"
            raise _core.DTypeError(
                f"{where}: the int {text} does not fit {dtype}; need a smaller one"
            )
        return Value(graph, graph._here().constant(number, dtype))
    try:
        return Value(graph, graph._here().scalar(dtype, float(number)))
    except _core.DTypeError as error:
        said = str(error).removeprefix("constant: ")
        raise _core.DTypeError(f"{where}: {said}") from None


def _emit(op: str, where: str, *operands: Operand, **attrs: Any) -> Value:
    values = _operands(where, *operands)
    return values[0].graph._emit(op, values, **attrs)[0]
