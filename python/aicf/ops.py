"""The functions on Values, in NumPy's and PyTorch's names and argument order.

Each appends a node and returns its output. A Python number takes the other operand's dtype; dtypes
never mix otherwise. Shapes broadcast as NumPy's. Errors: ShapeError, DTypeError, and GraphError for
Values of two graphs, each naming the operands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from . import movement
from ._core import GraphError, ShapeError
from .arguments import DTypeName, checked, placed
from .graph import Data, Operand, Value
from .movement import _axes, detach, reshape, squeeze
from .operands import _constant, _emit, _operands

__all__ = [
    "abs",
    "add",
    "argmax",
    "cast",
    "clip",
    "cos",
    "cumsum",
    "div",
    "elu",
    "equal",
    "erf",
    "exp",
    "floor",
    "floor_divide",
    "fmod",
    "gelu",
    "greater",
    "greater_equal",
    "isnan",
    "leaky_relu",
    "less",
    "less_equal",
    "linear",
    "log",
    "log1p",
    "log_softmax",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "logsumexp",
    "matmul",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "mul",
    "neg",
    "not_equal",
    "pow",
    "prod",
    "relu",
    "remainder",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "softmax",
    "softplus",
    "sqrt",
    "sub",
    "sum",
    "tanh",
    "var",
    "where",
]


# ---- pointwise


def abs(x: Value) -> Value:
    """|x|.

    >>> aicf.abs(x).shape
    (4, 3)
    """
    return _emit("Abs", "abs", x)


def neg(x: Value) -> Value:
    """−x.

    >>> aicf.neg(x).shape
    (4, 3)
    """
    return _emit("Neg", "neg", x)


def sign(x: Value) -> Value:
    """−1, 0 or 1; NaN stays NaN. Its gradient is zero.

    >>> aicf.sign(x).shape
    (4, 3)
    """
    return _emit("Sign", "sign", x)


def floor(x: Value) -> Value:
    """The largest whole number <= x, an integer x itself. Its gradient is zero.

    >>> aicf.floor(x).shape
    (4, 3)
    """
    return x if _whole(x) else _emit("Floor", "floor", x)


def round(x: Value) -> Value:
    """The nearest whole number, halves to even; an integer x itself. Its gradient is zero.

    >>> aicf.round(x).shape
    (4, 3)
    """
    return x if _whole(x) else _emit("Round", "round", x)


def exp(x: Value) -> Value:
    """e**x, within 1 ULP in float32.

    >>> aicf.exp(x).shape
    (4, 3)
    """
    return _emit("Exp", "exp", x)


def log(x: Value) -> Value:
    """Natural logarithm, within 1 ULP in float32.

    >>> aicf.log(aicf.abs(x) + 1.0).shape
    (4, 3)
    """
    return _emit("Log", "log", x)


def log1p(x: Value) -> Value:
    """log(1 + x) without the rounding of 1 + x, within 1 ULP in float32 and float64.

    >>> aicf.log1p(aicf.exp(x)).shape
    (4, 3)
    """
    return _emit("Log1p", "log1p", x)


def sqrt(x: Value) -> Value:
    """Square root, correctly rounded.

    >>> aicf.sqrt(x).shape
    (4, 3)
    """
    return _emit("Sqrt", "sqrt", x)


def rsqrt(x: Value) -> Value:
    """1/sqrt(x), within 1 ULP in float32.

    >>> aicf.rsqrt(x).shape
    (4, 3)
    """
    return _emit("Rsqrt", "rsqrt", x)


def sin(x: Value) -> Value:
    """Sine of x in radians, within 1 ULP in float32 for every x.

    >>> aicf.sin(x).shape
    (4, 3)
    """
    return _emit("Sin", "sin", x)


def cos(x: Value) -> Value:
    """Cosine of x in radians, within 1 ULP in float32 for every x.

    >>> aicf.cos(x).shape
    (4, 3)
    """
    return _emit("Cos", "cos", x)


def tanh(x: Value) -> Value:
    """Hyperbolic tangent.

    >>> aicf.tanh(x).shape
    (4, 3)
    """
    return _emit("Tanh", "tanh", x)


def erf(x: Value) -> Value:
    """The error function, 2/sqrt(pi) times the integral of exp(-t**2) from 0 to x.

    >>> aicf.erf(x).shape
    (4, 3)
    """
    return _emit("Erf", "erf", x)


def sigmoid(x: Value) -> Value:
    """1 / (1 + exp(−x)).

    >>> aicf.sigmoid(x).shape
    (4, 3)
    """
    return _emit("Sigmoid", "sigmoid", x)


def silu(x: Value) -> Value:
    """x · sigmoid(x).

    >>> aicf.silu(x).shape
    (4, 3)
    """
    return _emit("SiLU", "silu", x)


def relu(x: Value) -> Value:
    """max(x, 0); its gradient at 0 is 0.

    >>> aicf.relu(x).shape
    (4, 3)
    """
    return _emit("ReLU", "relu", x)


def logical_not(x: Value) -> Value:
    """Not x; a number counts as whether it is not 0.

    >>> aicf.logical_not(x > 0.0).dtype
    'bool'
    """
    return _emit("LogicalNot", "logical_not", _true(x))


def isnan(x: Value) -> Value:
    """True where x is NaN; an integer never is.

    >>> aicf.isnan(x).dtype
    'bool'
    """
    return not_equal(x, x) if _whole(x) else _emit("IsNan", "isnan", x)


def add(a: Operand, b: Operand) -> Value:
    """a + b.

    >>> aicf.add(x, y[:1]).shape
    (4, 3)
    """
    return _emit("Add", "add", a, b)


def sub(a: Operand, b: Operand) -> Value:
    """a − b.

    >>> aicf.sub(x, y[:1]).shape
    (4, 3)
    """
    return _emit("Sub", "sub", a, b)


def mul(a: Operand, b: Operand) -> Value:
    """a · b.

    >>> aicf.mul(x, y[:1]).shape
    (4, 3)
    """
    return _emit("Mul", "mul", a, b)


def div(a: Operand, b: Operand) -> Value:
    """a / b, for float dtypes.

    >>> aicf.div(x, y[:1]).shape
    (4, 3)
    """
    return _emit("Div", "div", a, b)


def floor_divide(a: Operand, b: Operand) -> Value:
    """floor(a / b), as Python's `//`; of integers by 0 it is 0. Its gradient is zero.

    >>> (x // 2.0).shape
    (4, 3)
    """
    return _emit("FloorDivide", "floor_divide", a, b)


def fmod(a: Operand, b: Operand) -> Value:
    """a − b · trunc(a / b), exactly, with the sign of a; of integers by 0 it is 0.

    >>> aicf.fmod(x, y[:1]).shape
    (4, 3)
    """
    return _emit("Fmod", "fmod", a, b)


def remainder(a: Operand, b: Operand) -> Value:
    """a − b · floor(a / b), as Python's `%`, with the sign of b; of integers by 0 it is 0.

    >>> (labels % 3).dtype
    'int64'
    """
    rest = fmod(a, b)
    by = b if isinstance(b, Value) else _constant("remainder", rest.graph, b, rest.dtype)
    below = less(by, 0)
    across = logical_and(not_equal(rest, 0), logical_xor(less(rest, 0), below))
    rest = where(across, add(rest, by), rest)
    if not rest.dtype.startswith(("float", "bfloat")):
        return rest
    return where(below, neg(add(neg(rest), 0.0)), add(rest, 0.0))  # 0 too has the sign of b


def pow(a: Operand, b: Operand) -> Value:
    """a ** b, for float dtypes.

    >>> aicf.pow(x, y[:1]).shape
    (4, 3)
    """
    return _emit("Pow", "pow", a, b)


def maximum(a: Operand, b: Operand) -> Value:
    """The larger of a and b; NaN wins. Equal operands share the gradient.

    >>> aicf.maximum(x, 0.0).shape
    (4, 3)
    """
    return _emit("Maximum", "maximum", a, b)


def minimum(a: Operand, b: Operand) -> Value:
    """The smaller of a and b; NaN wins. Equal operands share the gradient.

    >>> aicf.minimum(x, 0.0).shape
    (4, 3)
    """
    return _emit("Minimum", "minimum", a, b)


def equal(a: Operand, b: Operand) -> Value:
    """a == b, as bool. (`==` of Values is identity.)

    >>> aicf.equal(x, y).dtype
    'bool'
    """
    return _emit("Eq", "equal", a, b)


def not_equal(a: Operand, b: Operand) -> Value:
    """a != b, as bool.

    >>> aicf.not_equal(x, y).dtype
    'bool'
    """
    return _emit("Ne", "not_equal", a, b)


def less(a: Operand, b: Operand) -> Value:
    """a < b, as bool.

    >>> aicf.less(x, y).dtype
    'bool'
    """
    return _emit("Lt", "less", a, b)


def less_equal(a: Operand, b: Operand) -> Value:
    """a <= b, as bool.

    >>> aicf.less_equal(x, y).dtype
    'bool'
    """
    return _emit("Le", "less_equal", a, b)


def greater(a: Operand, b: Operand) -> Value:
    """a > b, as bool.

    >>> aicf.greater(x, y).dtype
    'bool'
    """
    return _emit("Gt", "greater", a, b)


def greater_equal(a: Operand, b: Operand) -> Value:
    """a >= b, as bool.

    >>> aicf.greater_equal(x, y).dtype
    'bool'
    """
    return _emit("Ge", "greater_equal", a, b)


def logical_and(a: Operand, b: Operand) -> Value:
    """a and b; a number counts as whether it is not 0.

    >>> aicf.logical_and(x > 0.0, y > 0.0).dtype
    'bool'
    """
    return _emit("LogicalAnd", "logical_and", _true(a), _true(b))


def logical_or(a: Operand, b: Operand) -> Value:
    """a or b; a number counts as whether it is not 0.

    >>> aicf.logical_or(x > 0.0, y > 0.0).dtype
    'bool'
    """
    return _emit("LogicalOr", "logical_or", _true(a), _true(b))


def logical_xor(a: Operand, b: Operand) -> Value:
    """Exactly one of a and b; a number counts as whether it is not 0.

    >>> aicf.logical_xor(x > 0.0, y > 0.0).dtype
    'bool'
    """
    return _emit("LogicalXor", "logical_xor", _true(a), _true(b))


def gelu(x: Value, approximate: str = "none") -> Value:
    """x · Φ(x) (Hendrycks and Gimpel, 2016).

    Args:
        approximate: "none" = by erf; "tanh" = 0.5x(1 + tanh(sqrt(2/pi)(x + 0.044715x³))).

    >>> aicf.gelu(x, approximate="tanh").shape
    (4, 3)
    """
    ops = {"none": "GeluErf", "tanh": "GeluTanh"}
    if approximate not in ops:
        raise GraphError(f'gelu: approximate is {approximate!r}; need "none" or "tanh"')
    return _emit(ops[approximate], "gelu", x)


def softplus(x: Value, beta: float = 1.0, threshold: float | None = None) -> Value:
    """log(1 + exp(beta · x)) / beta.

    Args:
        threshold: where beta · x is larger the result is x; None = nowhere, where PyTorch has 20:
            float64 results keep all their digits.

    >>> aicf.softplus(x).shape
    (4, 3)
    """
    if not beta > 0:
        raise GraphError(f"softplus: beta is {beta}; need beta > 0")
    scaled = x if beta == 1 else mul(_widened(x), beta)
    y = _emit("Softplus", "softplus", scaled)
    y = y if beta == 1 else _as(div(y, beta), x.dtype)
    return y if threshold is None else where(greater(scaled, threshold), x, y)


def leaky_relu(x: Value, negative_slope: float = 0.01) -> Value:
    """x where x > 0, else negative_slope · x.

    >>> aicf.leaky_relu(x).shape
    (4, 3)
    """
    return _emit("LeakyReLU", "leaky_relu", x, slope=negative_slope)


def elu(x: Value, alpha: float = 1.0) -> Value:
    """x where x > 0, else alpha · (exp(x) − 1).

    >>> aicf.elu(x).shape
    (4, 3)
    """
    return _emit("ELU", "elu", x, alpha=alpha)


def clip(x: Value, min: float | Data | None = None, max: float | Data | None = None) -> Value:
    """x limited to [min, max]; None = no limit on that side. The gradient passes inside.

    Limits that are Values or arrays broadcast with x, and have the gradient where they are taken.

    >>> aicf.clip(x, -1.0, 1.0).shape
    (4, 3)
    """
    if isinstance(min, Value) or isinstance(max, Value):
        x = x if min is None else _beyond("clip", x, min, less)
        return x if max is None else _beyond("clip", x, max, greater)
    low, high = -math.inf if min is None else float(min), math.inf if max is None else float(max)
    if math.isnan(low) or math.isnan(high):
        raise GraphError(f"clip: limits are {low} and {high}; need numbers")
    return _emit("Clip", "clip", x, lo=low, hi=high)


def _beyond(name: str, x: Value, limit: Operand, outside: Callable[..., Value]) -> Value:
    x, limit = _operands(name, x, limit)
    return where(logical_or(outside(x, limit), isnan(limit)), limit, x)


def where(condition: Data, a: Operand, b: Operand) -> Value:
    """a where the bool `condition` holds, else b.

    Two Python numbers make float32, as `Graph.constant` does; two bools make bool.

    >>> aicf.where(x > 0.0, x, 0.0).dtype
    'float32'
    """
    if not isinstance(a, Value) and not isinstance(b, Value):
        dtype = "bool" if isinstance(a, bool) and isinstance(b, bool) else "float32"
        a = _constant("where", condition.graph, a, dtype)
    return _emit("Where", "where", condition, a, b)


def cast(x: Value, dtype: DTypeName) -> Value:
    """x in another dtype. To an integer: towards zero, saturating, NaN to 0; to bool: x != 0.

    >>> aicf.cast(x, "int32").dtype
    'int32'
    """
    return _emit("Cast", "cast", x, dtype=dtype)


def _as(x: Value, dtype: DTypeName) -> Value:
    return x if x.dtype == dtype else cast(x, dtype)


def _widened(x: Value) -> Value:
    """16 bits as float32: what is composed of several ops then rounds once, as one op does."""
    return cast(x, "float32") if x.dtype in ("float16", "bfloat16") else x


def _whole(x: Value) -> bool:
    return x.dtype.startswith(("int", "uint"))


def _true(x: Operand) -> Operand:
    """Whether it is not 0."""
    if isinstance(x, Value):
        return x if x.dtype == "bool" else not_equal(x, 0)
    return x != 0


# ---- reductions


def _reduce(
    op: str, where: str, x: Value, axis: int | Sequence[int] | None, keepdims: bool
) -> Value:
    return _emit(op, where, x, axes=_axes(x, axis), keepdims=keepdims)


def sum(x: Value, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Value:
    """Sum over `axis` (None = all), in the order `tree`: error <= (log2 n + 2)·u·Σ|x|.

    >>> aicf.sum(x, axis=1).shape
    (4,)
    """
    return _reduce("Sum", "sum", x, axis, keepdims)


def mean(x: Value, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Value:
    """Mean over `axis` (None = all); of no elements NaN.

    >>> aicf.mean(x, axis=1).shape
    (4,)
    """
    return _reduce("Mean", "mean", x, axis, keepdims)


def prod(x: Value, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Value:
    """Product over `axis` (None = all), in the order `tree`; of no elements 1.

    The gradient is right beside zeros: of a single one, the product of the other elements.

    >>> aicf.prod(x, axis=1).shape
    (4,)
    """
    return _reduce("Prod", "prod", x, axis, keepdims)


def max(x: Value, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Value:
    """Largest element over `axis`; NaN wins. Ties share the gradient equally.

    >>> aicf.max(x, axis=1).shape
    (4,)
    """
    return _reduce("Max", "max", x, axis, keepdims)


def min(x: Value, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Value:
    """Smallest element over `axis`; NaN wins. Ties share the gradient equally.

    >>> aicf.min(x, axis=1).shape
    (4,)
    """
    return _reduce("Min", "min", x, axis, keepdims)


def softmax(x: Value, axis: int = -1) -> Value:
    """exp(x − max) / Σ exp(x − max) along `axis`.

    >>> aicf.softmax(x).shape
    (4, 3)
    """
    return _emit("Softmax", "softmax", x, axis=axis)


def log_softmax(x: Value, axis: int = -1) -> Value:
    """x − max − log Σ exp(x − max) along `axis`.

    >>> aicf.log_softmax(x).shape
    (4, 3)
    """
    return _emit("LogSoftmax", "log_softmax", x, axis=axis)


def var(
    x: Value, axis: int | Sequence[int] | None = None, correction: float = 1, keepdims: bool = False
) -> Value:
    """Variance over `axis`: Σ(x − mean)² / (n − correction); of a constant exactly 0.

    >>> aicf.var(x, axis=1).shape
    (4,)
    """
    axes = _axes(x, axis)
    along = {a % x.ndim for a in axes if x.ndim}
    wide = _widened(x)
    # The mean is that of the distances from one element, whose sum is small where x is far away;
    # the variance does not depend on which, so no gradient goes there.
    first = detach(_widened(x[tuple(slice(1 if a in along else None) for a in range(x.ndim))]))
    centred = sub(wide, add(mean(sub(wide, first), axes, keepdims=True), first))
    total = sum(mul(centred, centred), axes, keepdims)
    freedom = math.prod(x.shape[a] for a in axes) - correction
    return _as(div(total, float(freedom) if freedom > 0 else 0.0), x.dtype)


def argmax(x: Value, axis: int | None = None, keepdims: bool = False) -> Value:
    """int64 position of the first largest element along `axis` (None = of the flattened x).

    >>> aicf.argmax(x, axis=1).dtype
    'int64'
    """
    if axis is None:
        at = _emit("ArgMax", "argmax", reshape(x, math.prod(x.shape)), axes=[0])
        return reshape(at, [1] * x.ndim) if keepdims else at
    return _emit("ArgMax", "argmax", x, axes=[axis], keepdims=keepdims)


def cumsum(x: Value, axis: int) -> Value:
    """Running sum along `axis`, in ascending order.

    >>> aicf.cumsum(x, axis=0).shape
    (4, 3)
    """
    return _emit("CumSum", "cumsum", x, axis=axis)


def logsumexp(x: Value, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Value:
    """log Σ exp(x) over `axis`, safe for large x; −inf of no elements.

    >>> aicf.logsumexp(x, axis=1).shape
    (4,)
    """
    wide = _widened(x)
    if 0 in x.shape:  # no largest element, and no sum to overflow
        total = log(sum(exp(wide), axis, keepdims=True))
        return _as(total if keepdims else squeeze(total, _axes(x, axis)), x.dtype)
    top = detach(max(wide, axis, keepdims=True))
    top = where(less(abs(top), math.inf), top, 0.0)
    total = _as(add(log(sum(exp(sub(wide, top)), axis, keepdims=True)), top), x.dtype)
    return total if keepdims else squeeze(total, _axes(x, axis))


# ---- matrix products


def matmul(a: Operand, b: Operand) -> Value:
    """a[..., M, K] @ b[..., K, N] -> [..., M, N], batch axes broadcast; rank 1 as in NumPy.

    >>> aicf.matmul(x, y.T).shape
    (4, 4)
    """
    return _emit("MatMul", "matmul", a, b)


def linear(x: Value, W: Value, b: Value | None = None) -> Value:
    """x[..., in] @ W[out, in]^T + b[out] -> [..., out].

    >>> aicf.linear(x, w).shape
    (4, 2)
    """
    values = [x, W] if b is None else [x, W, b]
    return _emit("Linear", "linear", *values, bias=b is not None)


for _name in __all__:
    globals()[_name] = checked(globals()[_name])

_NOT_METHODS = {"concat", "linear", "stack", "where"}
_OPERATORS = {
    "add": add,
    "sub": sub,
    "mul": mul,
    "truediv": div,
    "floordiv": floor_divide,
    "mod": remainder,
    "divmod": lambda a, b: (floor_divide(a, b), remainder(a, b)),
    "pow": pow,
    "matmul": matmul,
}


def _add_operators() -> None:
    def swapped(fn: Any) -> Any:
        return lambda self, other: fn(other, self)

    def refused(sign: str, instead: str) -> Any:
        def refuse(self: Value, *others: Any) -> Any:
            raise placed(
                GraphError(f"{sign}: Values have no such operator, got {self!r}; use {instead}")
            )

        return refuse

    def turned(x: Value) -> Value:
        """The two axes of a matrix exchanged; of other ranks libraries mean different things."""
        if x.ndim == 2:
            return movement.transpose(x)
        raise placed(
            ShapeError(
                f"T: x is {x!r}; need rank 2 (x.mT exchanges the last two axes, x.permute(...) any)"
            )
        )

    for name, fn in _OPERATORS.items():
        setattr(Value, f"__{name}__", lambda self, other, fn=fn: fn(self, other))
        setattr(Value, f"__r{name}__", swapped(fn))
    for name, fn in {"lt": less, "le": less_equal, "gt": greater, "ge": greater_equal}.items():
        setattr(Value, f"__{name}__", lambda self, other, fn=fn: fn(self, other))
    for name in ("setitem", "delitem"):
        instead = "aicf.where or aicf.concat, which make a new Value"
        setattr(Value, f"__{name}__", refused(name, instead))
    others = {
        "__neg__": neg,
        "__pos__": lambda self: self,
        "__abs__": abs,
        "__round__": round,
        "T": property(turned),
        "mT": property(movement.transpose),
    }
    functions = {name: globals()[name] for name in __all__ if name not in _NOT_METHODS}
    moves = {name: getattr(movement, name) for name in movement.__all__}
    for name in _NOT_METHODS & moves.keys():
        del moves[name]
    for name, fn in {**others, **functions, **moves}.items():
        setattr(Value, name, fn)


_add_operators()
