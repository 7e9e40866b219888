"""The functions on Values, in NumPy's and PyTorch's names and argument order.

Each appends a node and returns its output. A Python number takes the other operand's dtype; dtypes
never mix otherwise. Shapes broadcast as NumPy's. Errors: ShapeError, DTypeError, and GraphError for
Values of two graphs, each naming the operands.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any

from ._core import DTypeError, GraphError, ShapeError
from .graph import Value, _sizes

Operand = Value | int | float | bool

__all__ = [
    "abs",
    "add",
    "broadcast_to",
    "cast",
    "clip",
    "cos",
    "cross_entropy",
    "div",
    "elu",
    "equal",
    "erf",
    "exp",
    "floor",
    "gelu",
    "greater",
    "greater_equal",
    "isnan",
    "leaky_relu",
    "less",
    "less_equal",
    "linear",
    "log",
    "log_softmax",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "matmul",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "mse_loss",
    "mul",
    "neg",
    "not_equal",
    "permute",
    "pow",
    "relu",
    "reshape",
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
    "transpose",
    "where",
]


def _operands(where: str, *operands: Operand) -> list[Value]:
    values = [x for x in operands if isinstance(x, Value)]
    if not values:
        raise GraphError(f"{where}: got {operands!r}; need at least one Value")
    graph = values[0].graph
    result = []
    for x in operands:
        if isinstance(x, (builtins.bool, int, float)):
            # Among several Values the last one gives the dtype: where(condition, x, 0.0).
            x = _number(where, graph, x, values[-1].dtype)
        graph._id(x, where)
        result.append(x)
    return result


def _number(where: str, graph: Any, number: int | float, dtype: str) -> Value:
    if isinstance(number, int) and builtins.abs(number) > 2**53:  # float() would round it
        if dtype != "int64" or not -(2**63) <= number < 2**63:
            text = str(number) if number.bit_length() < 200 else f"{number.bit_length()} bits"
            raise DTypeError(f"{where}: the int {text} does not fit {dtype}; need a smaller one")
        return Value(graph, graph._here().constant(number, dtype))
    return Value(graph, graph._here().scalar(dtype, float(number)))


def _emit(op: str, where: str, *operands: Operand, **attrs: Any) -> Value:
    values = _operands(where, *operands)
    return values[0].graph._emit(op, values, **attrs)[0]


def _value(where: str, x: Value) -> Value:
    if not isinstance(x, Value):
        raise GraphError(f"{where}: got {type(x).__name__} {x!r}; need a Value")
    return x


def _axes(where: str, x: Value, axis: int | Sequence[int] | None) -> list[int]:
    if axis is None:
        return list(range(_value(where, x).ndim))
    try:
        return [axis.__index__()] if hasattr(axis, "__index__") else [a.__index__() for a in axis]
    except (AttributeError, TypeError):
        raise ShapeError(
            f"{where}: axis is {axis!r}; need an int, a sequence of ints or None"
        ) from None


# ---- pointwise


def abs(x: Value) -> Value:
    """|x|."""
    return _emit("Abs", "abs", x)


def neg(x: Value) -> Value:
    """−x."""
    return _emit("Neg", "neg", x)


def sign(x: Value) -> Value:
    """−1, 0 or 1; NaN stays NaN. Its gradient is zero."""
    return _emit("Sign", "sign", x)


def floor(x: Value) -> Value:
    """The largest whole number <= x. Its gradient is zero."""
    return _emit("Floor", "floor", x)


def round(x: Value) -> Value:
    """The nearest whole number, halves to even. Its gradient is zero."""
    return _emit("Round", "round", x)


def exp(x: Value) -> Value:
    """e**x, within 1 ULP in float32."""
    return _emit("Exp", "exp", x)


def log(x: Value) -> Value:
    """Natural logarithm, within 1 ULP in float32."""
    return _emit("Log", "log", x)


def sqrt(x: Value) -> Value:
    """Square root, correctly rounded."""
    return _emit("Sqrt", "sqrt", x)


def rsqrt(x: Value) -> Value:
    """1/sqrt(x), within 1 ULP in float32."""
    return _emit("Rsqrt", "rsqrt", x)


def sin(x: Value) -> Value:
    """Sine of x in radians, within 1 ULP in float32 for every x."""
    return _emit("Sin", "sin", x)


def cos(x: Value) -> Value:
    """Cosine of x in radians, within 1 ULP in float32 for every x."""
    return _emit("Cos", "cos", x)


def tanh(x: Value) -> Value:
    """Hyperbolic tangent."""
    return _emit("Tanh", "tanh", x)


def erf(x: Value) -> Value:
    """The error function, 2/sqrt(pi) times the integral of exp(-t**2) from 0 to x."""
    return _emit("Erf", "erf", x)


def sigmoid(x: Value) -> Value:
    """1 / (1 + exp(−x))."""
    return _emit("Sigmoid", "sigmoid", x)


def silu(x: Value) -> Value:
    """x · sigmoid(x)."""
    return _emit("SiLU", "silu", x)


def relu(x: Value) -> Value:
    """max(x, 0); its gradient at 0 is 0."""
    return _emit("ReLU", "relu", x)


def logical_not(x: Value) -> Value:
    """Not x, for bool."""
    return _emit("LogicalNot", "logical_not", x)


def isnan(x: Value) -> Value:
    """True where x is NaN."""
    return _emit("IsNan", "isnan", x)


def add(a: Operand, b: Operand) -> Value:
    """a + b."""
    return _emit("Add", "add", a, b)


def sub(a: Operand, b: Operand) -> Value:
    """a − b."""
    return _emit("Sub", "sub", a, b)


def mul(a: Operand, b: Operand) -> Value:
    """a · b."""
    return _emit("Mul", "mul", a, b)


def div(a: Operand, b: Operand) -> Value:
    """a / b, for float dtypes."""
    return _emit("Div", "div", a, b)


def pow(a: Operand, b: Operand) -> Value:
    """a ** b, for float dtypes."""
    return _emit("Pow", "pow", a, b)


def maximum(a: Operand, b: Operand) -> Value:
    """The larger of a and b; NaN wins. Equal operands share the gradient."""
    return _emit("Maximum", "maximum", a, b)


def minimum(a: Operand, b: Operand) -> Value:
    """The smaller of a and b; NaN wins. Equal operands share the gradient."""
    return _emit("Minimum", "minimum", a, b)


def equal(a: Operand, b: Operand) -> Value:
    """a == b, as bool. (`==` of Values is identity.)"""
    return _emit("Eq", "equal", a, b)


def not_equal(a: Operand, b: Operand) -> Value:
    """a != b, as bool."""
    return _emit("Ne", "not_equal", a, b)


def less(a: Operand, b: Operand) -> Value:
    """a < b, as bool."""
    return _emit("Lt", "less", a, b)


def less_equal(a: Operand, b: Operand) -> Value:
    """a <= b, as bool."""
    return _emit("Le", "less_equal", a, b)


def greater(a: Operand, b: Operand) -> Value:
    """a > b, as bool."""
    return _emit("Gt", "greater", a, b)


def greater_equal(a: Operand, b: Operand) -> Value:
    """a >= b, as bool."""
    return _emit("Ge", "greater_equal", a, b)


def logical_and(a: Operand, b: Operand) -> Value:
    """a and b, for bool."""
    return _emit("LogicalAnd", "logical_and", a, b)


def logical_or(a: Operand, b: Operand) -> Value:
    """a or b, for bool."""
    return _emit("LogicalOr", "logical_or", a, b)


def logical_xor(a: Operand, b: Operand) -> Value:
    """Exactly one of a and b, for bool."""
    return _emit("LogicalXor", "logical_xor", a, b)


def gelu(x: Value, approximate: str = "none") -> Value:
    """x · Φ(x) (Hendrycks and Gimpel, 2016).

    Args:
        approximate: "none" = by erf; "tanh" = 0.5x(1 + tanh(sqrt(2/pi)(x + 0.044715x³))).
    """
    ops = {"none": "GeluErf", "tanh": "GeluTanh"}
    if approximate not in ops:
        raise GraphError(f'gelu: approximate is {approximate!r}; need "none" or "tanh"')
    return _emit(ops[approximate], "gelu", x)


def softplus(x: Value) -> Value:
    """log(1 + exp(x)); x itself above 20, as PyTorch."""
    return _emit("Softplus", "softplus", x)


def leaky_relu(x: Value, negative_slope: float = 0.01) -> Value:
    """x where x > 0, else negative_slope · x."""
    return _emit("LeakyReLU", "leaky_relu", x, slope=float(negative_slope))


def elu(x: Value, alpha: float = 1.0) -> Value:
    """x where x > 0, else alpha · (exp(x) − 1)."""
    return _emit("ELU", "elu", x, alpha=float(alpha))


def clip(x: Value, min: float | None = None, max: float | None = None) -> Value:
    """x limited to [min, max]; None = no limit on that side. The gradient passes inside."""
    low, high = -math.inf if min is None else float(min), math.inf if max is None else float(max)
    return _emit("Clip", "clip", x, lo=low, hi=high)


def where(condition: Value, a: Operand, b: Operand) -> Value:
    """a where the bool `condition` holds, else b."""
    return _emit("Where", "where", condition, a, b)


def cast(x: Value, dtype: str) -> Value:
    """x in another dtype. To an integer: towards zero, saturating, NaN to 0; to bool: x != 0."""
    return _emit("Cast", "cast", x, dtype=str(dtype))


# ---- movement


def reshape(x: Value, shape: Sequence[int]) -> Value:
    """The same elements in C order under another shape; one size may be −1.

    Raises: ShapeError when the element counts differ.
    """
    sizes = _sizes([shape] if hasattr(shape, "__index__") else shape, "reshape")
    if sizes.count(-1) == 1:
        rest = math.prod(size for size in sizes if size != -1)
        count = math.prod(_value("reshape", x).shape)
        if rest <= 0 or count % rest:
            raise ShapeError(
                f"reshape: {x!r} has {count} elements, shape is {sizes}; "
                "need sizes whose product divides them"
            )
        sizes[sizes.index(-1)] = count // rest
    return _emit("Reshape", "reshape", x, shape=sizes)


def permute(x: Value, axes: Sequence[int]) -> Value:
    """Axes in another order: result.shape[i] == x.shape[axes[i]]."""
    rank = _value("permute", x).ndim
    given = [] if hasattr(axes, "__index__") else _axes("permute", x, axes)
    order = [axis + rank if -rank <= axis < 0 else axis for axis in given]
    return _emit("Transpose", "permute", x, axes=order)


def transpose(x: Value, dim0: int = -2, dim1: int = -1) -> Value:
    """Two axes exchanged, by default the last two."""
    rank = _value("transpose", x).ndim
    dim0, dim1 = _axes("transpose", x, (dim0, dim1))
    if not (-rank <= dim0 < rank and -rank <= dim1 < rank):
        raise ShapeError(f"transpose: axes {dim0}, {dim1} of {x!r}; need axes in [{-rank}, {rank})")
    order = list(range(rank))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return _emit("Transpose", "transpose", x, axes=order)


def broadcast_to(x: Value, shape: Sequence[int]) -> Value:
    """x repeated along axes of size 1 and new leading axes, without copying."""
    return _emit("BroadcastTo", "broadcast_to", x, shape=_sizes(shape, "broadcast_to"))


# ---- reductions


def _reduce(
    op: str, where: str, x: Value, axis: int | Sequence[int] | None, keepdims: bool
) -> Value:
    return _emit(op, where, x, axes=_axes(where, x, axis), keepdims=builtins.bool(keepdims))


def sum(x: Value, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Value:
    """Sum over `axis` (None = all), in the order `tree`: error <= (log2 n + 2)·u·Σ|x|."""
    return _reduce("Sum", "sum", x, axis, keepdims)


def mean(x: Value, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Value:
    """Mean over `axis` (None = all); of no elements NaN."""
    return _reduce("Mean", "mean", x, axis, keepdims)


def max(x: Value, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Value:
    """Largest element over `axis`; NaN wins. Ties share the gradient equally."""
    return _reduce("Max", "max", x, axis, keepdims)


def min(x: Value, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Value:
    """Smallest element over `axis`; NaN wins. Ties share the gradient equally."""
    return _reduce("Min", "min", x, axis, keepdims)


def softmax(x: Value, axis: int = -1) -> Value:
    """exp(x − max) / Σ exp(x − max) along `axis`."""
    return _emit("Softmax", "softmax", x, axis=axis)


def log_softmax(x: Value, axis: int = -1) -> Value:
    """x − max − log Σ exp(x − max) along `axis`."""
    return _emit("LogSoftmax", "log_softmax", x, axis=axis)


# ---- matrix products


def matmul(a: Value, b: Value) -> Value:
    """a[..., M, K] @ b[..., K, N] -> [..., M, N], batch axes broadcast; rank 1 as in NumPy."""
    return _emit("MatMul", "matmul", a, b)


def linear(x: Value, W: Value, b: Value | None = None) -> Value:
    """x[..., in] @ W[out, in]^T + b[out] -> [..., out]."""
    values = [x, W] if b is None else [x, W, b]
    return _emit("Linear", "linear", *values, bias=b is not None)


# ---- losses


def mse_loss(y: Value, t: Value) -> Value:
    """mean((y − t)²) over all elements, rank 0."""
    return _emit("MseLoss", "mse_loss", y, t)


def cross_entropy(logits: Value, labels: Value) -> Value:
    """mean(−log_softmax(logits)[row, label]) over rows, rank 0.

    Args:
        logits: [N, C], float.
        labels: [N], int32 or int64, in [0, C); another label makes the row NaN, its gradient zero.
    """
    return _emit("CrossEntropy", "cross_entropy", logits, labels)


def _add_operators() -> None:
    def swapped(fn: Any) -> Any:
        return lambda self, other: fn(other, self)

    for name, fn in {
        "add": add,
        "sub": sub,
        "mul": mul,
        "truediv": div,
        "pow": pow,
        "matmul": matmul,
    }.items():
        setattr(Value, f"__{name}__", lambda self, other, fn=fn: fn(self, other))
        setattr(Value, f"__r{name}__", swapped(fn))
    for name, fn in {"lt": less, "le": less_equal, "gt": greater, "ge": greater_equal}.items():
        setattr(Value, f"__{name}__", lambda self, other, fn=fn: fn(self, other))
    for name, fn in {"and": logical_and, "or": logical_or, "xor": logical_xor}.items():
        setattr(Value, f"__{name}__", lambda self, other, fn=fn: fn(self, other))
        setattr(Value, f"__r{name}__", swapped(fn))
    Value.__neg__ = neg  # type: ignore[attr-defined]
    Value.__abs__ = abs  # type: ignore[attr-defined]
    Value.__invert__ = logical_not  # type: ignore[attr-defined]
    Value.T = property(transpose)  # type: ignore[attr-defined]
    for name in __all__:
        if name not in ("where", "linear", "cross_entropy"):
            setattr(Value, name, globals()[name])


_add_operators()
