"""The functions on Values, in NumPy's and PyTorch's names and argument order.

Each appends a node and returns its output. A Python number takes the other operand's dtype; dtypes
never mix otherwise. Shapes broadcast as NumPy's. Errors: ShapeError, DTypeError, and GraphError for
Values of two graphs, each naming the operands.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

from ._core import DTypeError, GraphError, ShapeError
from .graph import Value, _sizes

Operand: TypeAlias = Value | float  # float: any Python number

__all__ = [
    "abs",
    "add",
    "argmax",
    "broadcast_to",
    "cast",
    "clip",
    "concat",
    "cos",
    "cumsum",
    "detach",
    "div",
    "elu",
    "equal",
    "erf",
    "exp",
    "expand_dims",
    "flatten",
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
    "pad",
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
    "slice",
    "softmax",
    "softplus",
    "split",
    "sqrt",
    "squeeze",
    "stack",
    "sub",
    "sum",
    "take",
    "tanh",
    "transpose",
    "var",
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
    """log(1 + exp(x)), without PyTorch's threshold: float64 results keep all their digits."""
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


def reshape(x: Value, shape: int | Sequence[int]) -> Value:
    """The same elements in C order under another shape; one size may be −1.

    Raises: ShapeError when the element counts differ.
    """
    sizes = _sizes(shape if isinstance(shape, Sequence) else [shape], "reshape")
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
    order = [axis + rank if -rank <= axis < 0 else axis for axis in _axes("permute", x, axes)]
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


def slice(
    x: Value, start: Sequence[int], stop: Sequence[int], step: Sequence[int] | None = None
) -> Value:
    """x[start:stop:step] along every axis, with Python's rules for negative and large bounds."""
    return _index(
        x,
        tuple(builtins.slice(*s) for s in zip(start, stop, step or [1] * len(start), strict=True)),
    )


def _index(x: Value, key: Any) -> Value:
    """Basic indexing: ints, slices, `...` and None, as NumPy's."""
    rank = _value("index", x).ndim
    keys = list(key) if isinstance(key, tuple) else [key]
    taken = builtins.sum(k is not None and k is not Ellipsis for k in keys)
    if taken > rank or builtins.sum(k is Ellipsis for k in keys) > 1:
        raise ShapeError(f"index: {key!r} of {x!r}; need at most {rank} indices and one ...")
    if Ellipsis not in keys:
        keys.append(Ellipsis)
    at = next(i for i, k in enumerate(keys) if k is Ellipsis)
    keys[at : at + 1] = [builtins.slice(None)] * (rank - taken)
    starts, sizes, steps, shape = [], [], [], []
    axis = 0
    for k in keys:
        if k is None:
            shape.append(1)
            continue
        extent = x.shape[axis]
        if isinstance(k, builtins.slice):
            begin, end, stride = k.indices(extent)
            count = len(range(begin, end, stride))
            shape.append(count)
        elif hasattr(k, "__index__") and not isinstance(k, builtins.bool):
            begin, count, stride = k.__index__(), 1, 1
            if not -extent <= begin < extent:
                raise ShapeError(
                    f"index: {begin} on axis {axis} of {x!r}; need [{-extent}, {extent})"
                )
            begin += extent if begin < 0 else 0
        else:
            raise GraphError(
                f"index: got {k!r}; need ints, slices, ... or None (take() for arrays)"
            )
        starts.append(begin if count else 0)
        sizes.append(count)
        steps.append(stride)
        axis += 1
    if sizes != list(x.shape) or builtins.any(step != 1 for step in steps):
        x = _emit("Slice", "index", x, start=starts, size=sizes, step=steps)
    return x if list(x.shape) == shape else reshape(x, shape)


def concat(xs: Sequence[Value], axis: int = 0) -> Value:
    """Values joined along an axis; all other sizes equal."""
    if not xs:
        raise GraphError("concat: got no values; need at least one")
    parts = list(xs)
    while len(parts) > 16:  # an argument block holds so many operands
        parts = [concat(parts[i : i + 16], axis) for i in range(0, len(parts), 16)]
    return parts[0] if len(parts) == 1 else _emit("Concat", "concat", *parts, axis=axis)


def stack(xs: Sequence[Value], axis: int = 0) -> Value:
    """Values of one shape joined along a new axis."""
    if not xs:
        raise GraphError("stack: got no values; need at least one")
    rank = _value("stack", xs[0]).ndim + 1
    if not -rank <= axis < rank:
        raise ShapeError(f"stack: axis {axis} of {xs[0]!r}; need [{-rank}, {rank})")
    at = axis + rank if axis < 0 else axis
    return concat([expand_dims(x, at) for x in xs], at)


def split(x: Value, sections: int | Sequence[int], axis: int = 0) -> list[Value]:
    """x cut along an axis: into `sections` equal parts, or into parts of the given sizes."""
    rank = _value("split", x).ndim
    if not -rank <= axis < rank:
        raise ShapeError(f"split: axis {axis} of {x!r}; need [{-rank}, {rank})")
    axis = axis + rank if axis < 0 else axis
    extent = x.shape[axis]
    if isinstance(sections, int):
        if sections < 1 or extent % sections:
            raise ShapeError(f"split: {sections} sections of {x!r}; need a divisor of {extent}")
        sections = [extent // sections] * sections
    if builtins.sum(sections) != extent or builtins.min(sections, default=0) < 0:
        raise ShapeError(f"split: sizes {list(sections)} of {x!r}; need a sum of {extent}")
    parts, at = [], 0
    for size in sections:
        keys = [builtins.slice(None)] * axis + [builtins.slice(at, at + size)]
        parts.append(_index(x, tuple(keys)))
        at += size
    return parts


def expand_dims(x: Value, axis: int) -> Value:
    """x with a new axis of size 1 at `axis`."""
    rank = _value("expand_dims", x).ndim + 1
    if not -rank <= axis < rank:
        raise ShapeError(f"expand_dims: axis {axis} of {x!r}; need [{-rank}, {rank})")
    shape = list(x.shape)
    shape.insert(axis + rank if axis < 0 else axis, 1)
    return reshape(x, shape)


def squeeze(x: Value, axis: int | Sequence[int] | None = None) -> Value:
    """x without the given axes of size 1 (None = all of size 1)."""
    axes = _axes("squeeze", x, axis)
    if axis is None:
        axes = [a for a in axes if x.shape[a] == 1]
    if builtins.any(not -x.ndim <= a < x.ndim or x.shape[a] != 1 for a in axes):
        raise ShapeError(f"squeeze: axes {axes} of {x!r}; need axes of size 1")
    drop = {a % x.ndim for a in axes}
    return reshape(x, [size for a, size in enumerate(x.shape) if a not in drop])


def flatten(x: Value, start_axis: int = 0) -> Value:
    """The axes from `start_axis` on as one."""
    rank = _value("flatten", x).ndim
    if not 0 <= start_axis <= rank:
        raise ShapeError(f"flatten: start_axis {start_axis} of {x!r}; need [0, {rank}]")
    return reshape(x, [*x.shape[:start_axis], math.prod(x.shape[start_axis:])])


def pad(x: Value, widths: Sequence[tuple[int, int]], value: float = 0.0) -> Value:
    """x with `widths[axis] = (before, after)` elements of `value` around it."""
    rank = _value("pad", x).ndim
    pairs = [tuple(w) for w in widths]
    if len(pairs) != rank or builtins.any(len(w) != 2 or builtins.min(w) < 0 for w in pairs):
        raise ShapeError(f"pad: widths {widths!r} of {x!r}; need {rank} pairs (before, after) >= 0")
    shape = [size + a + b for size, (a, b) in zip(x.shape, pairs, strict=True)]
    start = [a for a, _ in pairs]
    return _emit("Pad", "pad", x, shape=shape, start=start, step=[1] * rank, value=float(value))


def take(x: Value, indices: Value, axis: int = 0) -> Value:
    """x's slices along `axis` at int `indices`.

    An index outside [0, n) gives NaN (0 for integers) and takes no gradient.
    """
    rank = _value("take", x).ndim
    if not -rank <= axis < rank:
        raise ShapeError(f"take: axis {axis} of {x!r}; need [{-rank}, {rank})")
    axis = axis + rank if axis < 0 else axis
    if axis == 0:
        return _emit("Take", "take", x, indices)
    order = [axis] + [a for a in range(rank) if a != axis]
    rows = _emit("Take", "take", permute(x, order), indices)
    lead, rest = list(range(indices.ndim)), list(range(indices.ndim, rows.ndim))
    return permute(rows, rest[:axis] + lead + rest[axis:])


def detach(x: Value) -> Value:
    """x without its gradient."""
    return _emit("Detach", "detach", x)


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


def var(
    x: Value, axis: int | Sequence[int] | None = None, correction: int = 1, keepdims: bool = False
) -> Value:
    """Variance over `axis`: Σ(x − mean)² / (n − correction)."""
    axes = _axes("var", x, axis)
    centred = sub(x, mean(x, axes, keepdims=True))
    count = math.prod(x.shape[a] for a in axes)
    total = sum(mul(centred, centred), axes, keepdims)
    return div(total, float(count - correction)) if count > correction else mul(total, math.nan)


def argmax(x: Value, axis: int | None = None, keepdims: bool = False) -> Value:
    """int64 position of the first largest element along `axis` (None = of the flattened x)."""
    if axis is None:
        x, axis = reshape(x, [-1]), 0
    return _emit("ArgMax", "argmax", x, axes=[axis], keepdims=builtins.bool(keepdims))


def cumsum(x: Value, axis: int) -> Value:
    """Running sum along `axis`, in ascending order."""
    return _emit("CumSum", "cumsum", x, axis=axis)


def logsumexp(x: Value, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Value:
    """log Σ exp(x) over `axis`, safe for large x."""
    top = detach(max(x, axis, keepdims=True))
    top = where(less(abs(top), math.inf), top, 0.0)
    total = add(log(sum(exp(sub(x, top)), axis, keepdims=True)), top)
    return total if keepdims else squeeze(total, _axes("logsumexp", x, axis))


# ---- matrix products


def matmul(a: Value, b: Value) -> Value:
    """a[..., M, K] @ b[..., K, N] -> [..., M, N], batch axes broadcast; rank 1 as in NumPy."""
    return _emit("MatMul", "matmul", a, b)


def linear(x: Value, W: Value, b: Value | None = None) -> Value:
    """x[..., in] @ W[out, in]^T + b[out] -> [..., out]."""
    values = [x, W] if b is None else [x, W, b]
    return _emit("Linear", "linear", *values, bias=b is not None)


_NOT_METHODS = {"concat", "linear", "stack", "where"}


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
    others = {"__neg__": neg, "__abs__": abs, "__invert__": logical_not, "__getitem__": _index}
    methods = {name: globals()[name] for name in __all__ if name not in _NOT_METHODS}
    for name, fn in {**others, **methods, "T": property(transpose)}.items():
        setattr(Value, name, fn)


_add_operators()
