"""Gradients as values: of any order, along a direction, and of one's own."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, overload

from ._core import DTypeError, GraphError, ShapeError
from .arguments import checked
from .graph import Value, is_float
from .loops import cut_reading
from .movement import broadcast_to, reshape
from .ops import add, cast, equal, logical_or, not_equal, sum, where

__all__ = ["custom_gradient", "grad", "jvp"]

Gradients: TypeAlias = "Value | Sequence[Value | None] | None"


@overload
def grad(value: Value, wrt: Value, grad: Value | None = None) -> Value: ...
@overload
def grad(value: Value, wrt: Sequence[Value], grad: Value | None = None) -> list[Value]: ...


@checked
def grad(
    value: Value, wrt: Value | Sequence[Value], grad: Value | None = None
) -> Value | list[Value]:
    """d value / d wrt, one Value for each of `wrt`, to compute with and to differentiate again.

    Zeros where `value` does not depend on one of them, as in JAX (PyTorch: materialize_grads).
    Nothing else changes in the graph: `Graph.backward` also keeps which gradient is whose.

    Args:
        value: rank 0, unless `grad` gives d / d value in its shape.
        wrt: a Value, or a sequence of them; any float of the graph, not only leaves.

    Raises: GraphError when the only way to one of `wrt` is an op that has no gradient.

    >>> aicf.grad(aicf.sum(aicf.grad(aicf.sum(x**3.0), x)), x).shape  # 6 x
    (4, 3)
    """
    if isinstance(wrt, Value):
        return value.graph._gradients(value, [wrt], grad, "grad", record=False)[0]
    return value.graph._gradients(value, wrt, grad, "grad", record=False)


@checked
def jvp(value: Value, wrt: Value | Sequence[Value], tangents: Value | Sequence[Value]) -> Value:
    """The derivative of `value` along `tangents`, in its shape: its Jacobian by `wrt` times them.

    Made by differentiating a gradient by what it is multiplied with, so it costs about two
    gradients where forward mode costs one, and every op needs a gradient that has one.

    Args:
        tangents: one for each of `wrt`, of its shape and dtype.

    >>> aicf.jvp(aicf.tanh(x), x, y).shape
    (4, 3)
    """
    points = [wrt] if isinstance(wrt, Value) else list(wrt)
    along = [tangents] if isinstance(tangents, Value) else list(tangents)
    if len(points) != len(along) or not points:
        raise GraphError(
            f"jvp: {len(points)} values in wrt, {len(along)} tangents; need one for each"
        )
    for point, tangent in zip(points, along, strict=True):
        _check_alike("jvp", "tangent", tangent, point)
    if not is_float(value):
        raise DTypeError(f"jvp: value is {value!r}; need a float dtype")
    # The products with it are linear in it, so that its numbers do not matter.
    factor = broadcast_to(value.graph.constant(0.0, value.dtype), value.shape)
    products = grad(value, points, grad=factor)
    terms = [
        cast(sum(product * tangent), value.dtype)
        for product, tangent in zip(products, along, strict=True)
    ]
    return grad(functools.reduce(add, terms), factor)


def custom_gradient(fn: Callable[..., tuple[Value, Callable[[Value], Gradients]]]) -> Any:
    """A function whose gradient is the one it gives, instead of that of its ops.

    Args:
        fn: takes Values, and options by name; returns its result and a function that makes, from
            the gradient of the result, the gradient of each Value in their order: one Value, or a
            sequence in which None stands for zero.

    Returns: a function as `fn` that returns the result alone. It is composed of ops as others are:
        both functions run while the graph is built and never in a step. What `fn` uses beside its
        arguments has no gradient, and a gradient by it is refused.

    >>> @aicf.custom_gradient
    ... def rounded(x):
    ...     return aicf.round(x), lambda dy: dy  # as if it were x
    >>> aicf.grad(aicf.sum(rounded(x)), x).shape
    (4, 3)
    """
    if not callable(fn):
        raise GraphError(f"custom_gradient: fn is {fn!r}; need a function")
    label = getattr(fn, "__name__", "fn")
    where = f"custom_gradient {label}"

    @functools.wraps(fn)
    def call(*values: Value, **options: Any) -> Value:
        for value in values:
            if not isinstance(value, Value):
                raise GraphError(f"{where}: got {value!r}; need Values, and options by name")
        if not values:
            raise GraphError(f"{where}: got no Values; need at least one")
        g = values[0].graph
        ids = [g._id(value, where) for value in values]
        mark = g._mark()
        try:
            return build(g, ids, values, fn(*values, **options), mark.core)
        except BaseException:
            g._rollback(mark)
            raise

    def build(g: Any, ids: list[int], values: Sequence[Value], made: Any, mark: Any) -> Value:
        if not (isinstance(made, tuple) and len(made) == 2 and callable(made[1])):
            raise GraphError(f"{where}: returned {made!r}; need (Value, function of its gradient)")
        result, backward = made
        core = g._core
        more = [Value(g, id) for id in core.sources(g._id(result, where), ids, mark)]

        def rule(dys: list[int]) -> list[int]:
            return checked_gradients(where, g, backward(Value(g, dys[0])), values)

        if is_kept(g):
            return kept_gradient(where, g, [result], values, more, rule)[0]
        out: Value = g._emit("CustomGradient", [result, *values, *more], count=len(values))[0]
        g._own_rules[out.id] = rule
        return out

    return call


def itself(x: Value) -> Value:
    """x as a value of its own, for which a gradient can be asked that leaves out what else x is
    read by."""
    made: Value = x.graph._emit("Reshape", [x], shape=list(x.shape))[0]
    return made


def later(x: Value, known: Value) -> Value:
    """x as a value of its own, not made before `known` is: what is computed of it neither counts as
    what was computed of x nor stands beside what `known` is made of."""
    if not math.prod(known.shape) or not math.prod(x.shape):
        return itself(x)
    first = reshape(known, (-1,))[:1]
    always = logical_or(equal(first, first), not_equal(first, first))
    return where(reshape(always, (1,) * x.ndim), x, 0.0)


# A function that uses itself in its gradient has gradients without end.
_KEPT_ORDERS = 2


def is_kept(g: Any) -> bool:
    """Whether gradients of one's own go into the graph: in bodies, where nobody asks for them."""
    return bool(g._building) and g._kept_orders < _KEPT_ORDERS


def kept_gradient(
    where: str, g: Any, made: Sequence[Value], values: Sequence[Value], more: Sequence[Value],
    rule: Callable[[list[int]], list[int]],
) -> list[Value]:  # fmt: skip
    """`made` of `values`, and of `more` without a gradient, with the gradient that `rule` makes."""
    floats = [is_float(one) for one in made]
    gives: list[int] = []

    def build(dys: list[Value]) -> list[Value]:
        left = iter(dys)
        ids = rule([next(left).id if each else -1 for each in floats])
        gives.extend(i for i, id in enumerate(ids) if id >= 0)
        return [Value(g, ids[i]) for i in gives]

    types = [(one.shape, one.dtype) for one in made if is_float(one)]
    g._kept_orders += 1
    try:
        body, captured = cut_reading(g, where, types, build)
    finally:
        g._kept_orders -= 1
    return list(g._emit(
        "KeptGradient", [*made, *values, *more, *captured], results=len(made), count=len(values),
        captured=len(captured), gives=gives, body=body,
    ))  # fmt: skip


def checked_gradients(where: str, g: Any, found: Any, values: Sequence[Value]) -> list[int]:
    """The ids of the gradients that a function of one's own gave; -1 for None."""
    grads = list(found) if isinstance(found, (list, tuple)) else [found]
    if len(grads) != len(values):
        raise GraphError(
            f"{where}: its backward gave {len(grads)} gradients; need {len(values)}, one "
            "for each argument"
        )
    for value, one in zip(values, grads, strict=True):
        if one is not None:
            g._id(one, where)
            _check_alike(where, "gradient", one, value)
    return [-1 if one is None else one.id for one in grads]


def _check_alike(where: str, what: str, given: Value, like: Value) -> None:
    if given.shape != like.shape:
        raise ShapeError(f"{where}: {what} is {given!r} for {like!r}; need equal shapes")
    if given.dtype != like.dtype:
        raise DTypeError(f"{where}: {what} is {given!r} for {like!r}; need equal dtypes")
