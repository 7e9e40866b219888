"""The op table: one row says how an IR op is called, what NumPy float64 makes of it, how far the
result may be off, and whether it has a gradient. test_ops.py runs every row in every way.

A row's shapes are written in letters, so that any axis can be given another size.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import aicf
import numpy as np
from compare import FLOATS

SIZES = {"a": 2, "b": 3, "c": 5, "d": 4, "i": 7, "o": 6}
INTS = ("int32", "int64", "uint8", "int8", "int16")
NO_FLOAT = "the result is no float"
EFFECT = "an optimizer's update is not differentiated"
NUMBER = "number"  # float64 beside float64, else float32
BOOL = "the result is bool"


class Arg(NamedTuple):
    """One operand: its axes, its range, and its dtype ("" = the dtype the row is run in)."""

    dims: str = "abc"
    low: float = -2.0
    high: float = 2.0
    dtype: str = ""  # "labels:c" = class numbers below the size of c, int64
    gap: float = 0.02  # no value lies closer to zero: kinks and poles are tested by name


class Case(NamedTuple):
    """One row of the table."""

    op: str
    args: tuple[Arg, ...]
    build: Callable[..., Any]  # (g, *values) -> Value or list of Values
    reference: Callable[..., Any]  # (*float64 arrays) -> array or list of arrays
    ulp: float = 0.0  # beyond one rounding, in float32, float16 and bfloat16
    ulp64: float = 4.0  # the same in float64, where the reference is rounded too
    extra: Callable[..., Any] | None = None  # allowed error in units of u, for sums
    grad: tuple[int, ...] | str = ()  # differentiable operands, or why there are none
    torch: Callable[..., Any] | None = None  # (torch, *tensors) -> tensor
    dtypes: tuple[str, ...] = FLOATS
    pointwise: bool = False
    hard: bool = True  # pointwise: injected with NaN, infinities, ...
    zero_sign: bool = True
    empty_error: str = ""  # letters whose size may not be 0
    stored: bool = False  # an intermediate result is rounded to the row's dtype
    result: str = ""  # dtype of the results, where it is not the row's
    label: str = ""

    @property
    def id(self) -> str:
        return f"{self.op}-{self.label}" if self.label else self.op


CASES: list[Case] = []


def row(op, args, build, reference, **rest):
    CASES.append(Case(op, tuple(args), build, reference, **rest))


ONE = (Arg(),)


def pointwise(op, fn, reference, args=ONE, **rest):
    row(op, args, lambda g, *v: fn(*v), reference, pointwise=True, **rest)


def derivative(op, fn, reference, args=ONE, **rest):
    """The op that a gradient rule emits, reached through `backward`."""

    def build(g, *v):
        *x, dy = v
        return g.backward(fn(*x), x, grad=dy)[x[0]]

    names = (*args, Arg(args[0].dims))
    rest.setdefault("stored", True)
    row(op, names, build, reference, grad=(0, 1), pointwise=True, hard=False, **rest)


# ---- references

erf = np.vectorize(math.erf, otypes=[np.float64])
erfc = np.vectorize(math.erfc, otypes=[np.float64])


def sigmoid(x):
    with np.errstate(over="ignore"):
        return np.where(x >= 0, 1 / (1 + np.exp(-x)), np.exp(x) / (1 + np.exp(np.minimum(x, 700))))


def silu(x):
    return np.where(x == -np.inf, -0.0, x * sigmoid(x))


LONG = np.longdouble


def two_parts(x):
    """As a sum of two float64, the second 0 where that is of no account."""
    high = x.astype(np.float64)
    return high, np.where(np.abs(high) < 1e4, x - high, 0).astype(np.float64)


def gelu_erf(x):
    """The tail magnifies an error of the argument by its square."""
    z, low = two_parts(-np.sqrt(LONG(0.5)) * x)
    tail = erfc(z) - 2 / math.sqrt(math.pi) * np.exp(-z * z) * low
    return np.where(x == -np.inf, -0.0, 0.5 * x * tail)


def gelu_tanh(x):
    x = np.asarray(x, np.float64)
    long = x.astype(LONG)
    u, low = two_parts(np.sqrt(2 / np.arctan(LONG(1))) * (long + LONG(44715) / 10**6 * long**3))
    s = sigmoid(u)
    return np.where(x == -np.inf, -0.0, x * (s + low * s * (1 - s)))


def softplus(x):
    return np.logaddexp(x, 0)


def dgelu_erf(x):
    return 0.5 * erfc(-x * math.sqrt(0.5)) + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def dgelu_tanh(x):
    c = math.sqrt(2 / math.pi)
    t = np.tanh(c * (x + 0.044715 * x**3))
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x)


def softmax(x, axis=-1):
    with np.errstate(all="ignore"):
        e = np.exp(x - x.max(axis, keepdims=True, initial=-np.inf))
        return e / e.sum(axis, keepdims=True)


def log_softmax(x, axis=-1):
    with np.errstate(all="ignore"):
        z = x - x.max(axis, keepdims=True, initial=-np.inf)
        return z - np.log(np.exp(z).sum(axis, keepdims=True))


def mean(x, *args, **kwargs):
    with np.errstate(all="ignore"):
        return np.sum(x, *args, **kwargs) / np.sum(np.ones_like(x), *args, **kwargs)


def truncated(low, high):
    """To an integer: towards zero, saturating, NaN to 0."""
    return lambda x: np.clip(np.trunc(np.nan_to_num(x, posinf=1e300, neginf=-1e300)), low, high)


# ---- pointwise, one operand

POSITIVE = (Arg(low=0.05, high=4),)
WIDE = (Arg(low=-9, high=9),)

pointwise("Neg", aicf.neg, np.negative, grad=(0,), torch=lambda t, x: -x)
pointwise("Abs", aicf.abs, np.abs, grad=(0,), torch=lambda t, x: x.abs())
pointwise("Sign", aicf.sign, np.sign, grad=(0,), torch=lambda t, x: t.sign(x), zero_sign=False)
pointwise("Floor", aicf.floor, np.floor, args=WIDE, grad=(0,), torch=lambda t, x: x.floor())
pointwise("Round", aicf.round, np.rint, args=WIDE, grad=(0,), torch=lambda t, x: x.round())
pointwise("Exp", aicf.exp, np.exp, ulp=1, args=WIDE, grad=(0,), torch=lambda t, x: x.exp())
pointwise("Log", aicf.log, np.log, ulp=1, args=POSITIVE, grad=(0,), torch=lambda t, x: x.log())
pointwise(
    "Log1p",
    aicf.log1p,
    np.log1p,
    ulp=1,
    args=(Arg(low=-0.95, high=4),),
    grad=(0,),
    torch=lambda t, x: x.log1p(),
)
UNIT = (Arg(low=-0.97, high=0.97),)
for _op, _torch, _args in (
    ("Expm1", "expm1", WIDE),
    ("Exp2", "exp2", WIDE),
    ("Log2", "log2", POSITIVE),
    ("Log10", "log10", POSITIVE),
    ("Tan", "tan", (Arg(low=-1.4, high=1.4),)),
    ("Asin", "arcsin", UNIT),
    ("Acos", "arccos", UNIT),
    ("Atan", "arctan", WIDE),
    ("Sinh", "sinh", WIDE),
    ("Cosh", "cosh", WIDE),
    ("Asinh", "arcsinh", WIDE),
    ("Acosh", "arccosh", (Arg(low=1.05, high=9),)),
    ("Atanh", "arctanh", UNIT),
):
    pointwise(
        _op,
        getattr(aicf, _op.lower()),
        getattr(np, _torch),
        ulp=1,
        args=_args,
        grad=(0,),
        torch=lambda t, x, _name=_torch: getattr(t, _name)(x),
    )
pointwise("Sqrt", aicf.sqrt, np.sqrt, args=POSITIVE, grad=(0,), torch=lambda t, x: x.sqrt())
pointwise(
    "Rsqrt",
    aicf.rsqrt,
    lambda x: 1 / np.sqrt(x),
    ulp=1,
    args=POSITIVE,
    grad=(0,),
    torch=lambda t, x: x.rsqrt(),
)
pointwise("Sin", aicf.sin, np.sin, ulp=1, args=WIDE, grad=(0,), torch=lambda t, x: x.sin())
pointwise("Cos", aicf.cos, np.cos, ulp=1, args=WIDE, grad=(0,), torch=lambda t, x: x.cos())
pointwise("Tanh", aicf.tanh, np.tanh, ulp=1, args=WIDE, grad=(0,), torch=lambda t, x: x.tanh())
pointwise("Erf", aicf.erf, erf, ulp=1, args=WIDE, grad=(0,), torch=lambda t, x: x.erf())
pointwise(
    "Sigmoid", aicf.sigmoid, sigmoid, ulp=4, args=WIDE, grad=(0,), torch=lambda t, x: x.sigmoid()
)
pointwise(
    "SiLU",
    aicf.silu,
    silu,
    ulp=4,
    args=WIDE,
    grad=(0,),
    torch=lambda t, x: t.nn.functional.silu(x),
)
pointwise(
    "GeluErf",
    aicf.gelu,
    gelu_erf,
    ulp=6,
    ulp64=8,
    args=WIDE,
    grad=(0,),
    torch=lambda t, x: t.nn.functional.gelu(x),
)
pointwise(
    "GeluTanh",
    lambda x: aicf.gelu(x, approximate="tanh"),
    gelu_tanh,
    ulp=4,
    ulp64=8,
    args=WIDE,
    grad=(0,),
    torch=lambda t, x: t.nn.functional.gelu(x, approximate="tanh"),
)
pointwise(
    "Softplus",
    aicf.softplus,
    softplus,
    ulp=4,
    args=WIDE,
    grad=(0,),
    torch=lambda t, x: t.nn.functional.softplus(x),
)
pointwise(
    "ReLU",
    aicf.relu,
    lambda x: np.where(x > 0, x, 0 * np.nan_to_num(x, posinf=0, neginf=0) + np.where(x != x, x, 0)),
    grad=(0,),
    torch=lambda t, x: x.relu(),
    zero_sign=False,
)
pointwise(
    "LeakyReLU",
    lambda x: aicf.leaky_relu(x, 0.125),
    lambda x: np.where(x > 0, x, 0.125 * x),
    grad=(0,),
    torch=lambda t, x: t.nn.functional.leaky_relu(x, 0.125),
)
pointwise(
    "ELU",
    lambda x: aicf.elu(x, 1.5),
    lambda x: np.where(x > 0, x, 1.5 * np.expm1(np.minimum(x, 1))),
    ulp=4,
    args=WIDE,
    grad=(0,),
    torch=lambda t, x: t.nn.functional.elu(x, 1.5),
)
pointwise(
    "Clip",
    lambda x: aicf.clip(x, -0.75, 1.25),
    lambda x: np.clip(x, -0.75, 1.25),
    grad=(0,),
    torch=lambda t, x: x.clamp(-0.75, 1.25),
)
pointwise(
    "Clip",
    lambda x: aicf.clip(x, min=0.5),
    lambda x: np.maximum(x, 0.5),
    grad=(0,),
    torch=lambda t, x: x.clamp(min=0.5),
    label="low",
)
pointwise("IsNan", aicf.isnan, np.isnan, grad=BOOL, result="bool")
pointwise(
    "LogicalNot",
    aicf.logical_not,
    np.logical_not,
    args=(Arg(dtype="bool"),),
    grad=BOOL,
    dtypes=("bool",),
    result="bool",
)
for _op, _fn, _np in (
    ("Neg", aicf.neg, np.negative),
    ("Abs", aicf.abs, np.abs),
    ("Sign", aicf.sign, np.sign),
    ("ReLU", aicf.relu, lambda x: np.maximum(x, 0)),
):
    pointwise(
        _op,
        _fn,
        _np,
        args=(Arg(low=-9, high=9),),
        dtypes=("int32", "int64"),
        hard=False,
        label="int",
    )

# ---- pointwise, two operands

AB = (Arg(), Arg())
for _op, _fn, _np in (
    ("Add", aicf.add, np.add),
    ("Sub", aicf.sub, np.subtract),
    ("Mul", aicf.mul, np.multiply),
    ("Maximum", aicf.maximum, np.maximum),
    ("Minimum", aicf.minimum, np.minimum),
):
    _torch = {"Sub": "sub", "Add": "add", "Mul": "mul"}.get(_op, _op.lower())
    pointwise(
        _op,
        _fn,
        _np,
        args=AB,
        grad=(0, 1),
        torch=lambda t, a, b, _name=_torch: getattr(t, _name)(a, b),
        zero_sign=_op not in ("Maximum", "Minimum"),
    )
    pointwise(
        _op,
        _fn,
        _np,
        args=(Arg(low=9, high=15), Arg(low=0, high=9)),
        dtypes=INTS,
        hard=False,
        label="int",
    )
pointwise(
    "Div",
    aicf.div,
    np.divide,
    args=(Arg(), Arg(gap=0.3)),
    grad=(0, 1),
    torch=lambda t, a, b: a / b,
)
pointwise(
    "Pow",
    aicf.pow,
    np.power,
    args=(Arg(low=0.1, high=3), Arg()),
    ulp=1,
    grad=(0, 1),
    torch=lambda t, a, b: a**b,
)
pointwise(
    "Atan2",
    aicf.atan2,
    np.arctan2,
    args=AB,
    ulp=1,
    grad=(0, 1),
    torch=lambda t, a, b: t.atan2(a, b),
)
pointwise(
    "Hypot",
    aicf.hypot,
    np.hypot,
    args=AB,
    ulp=1,
    grad=(0, 1),
    torch=lambda t, a, b: t.hypot(a, b),
)
for _op, _fn, _np in (
    ("BitwiseAnd", aicf.bitwise_and, np.bitwise_and),
    ("BitwiseOr", aicf.bitwise_or, np.bitwise_or),
    ("BitwiseXor", aicf.bitwise_xor, np.bitwise_xor),
    ("BitwiseLeftShift", aicf.bitwise_left_shift, np.left_shift),
    ("BitwiseRightShift", aicf.bitwise_right_shift, np.right_shift),
):
    pointwise(
        _op,
        _fn,
        lambda a, b, _f=_np: _f(a.astype(int), b.astype(int)),
        args=(Arg(low=0, high=60), Arg(low=0, high=3)),
        dtypes=INTS,
        hard=False,
        grad="the result is a whole number",
    )
NEAR = (Arg(low=-9, high=9), Arg(low=0.7, high=2))
pointwise("Fmod", aicf.fmod, np.fmod, args=NEAR, grad=(0, 1), torch=lambda t, a, b: t.fmod(a, b))
pointwise(
    "FloorDivide",
    aicf.floor_divide,
    np.floor_divide,
    args=NEAR,
    grad=(0, 1),
    torch=lambda t, a, b: t.div(a, b, rounding_mode="floor"),
)
for _op, _fn, _np in (
    ("Fmod", aicf.fmod, np.fmod),
    ("Fmod", aicf.remainder, np.remainder),
    ("FloorDivide", aicf.floor_divide, np.floor_divide),
):
    for _dtypes, _low in ((("int32", "int64"), -9), (("uint8",), 0)):
        pointwise(
            _op,
            _fn,
            lambda a, b, _f=_np: np.nan_to_num(_f(a, b), nan=0, posinf=0, neginf=0),
            args=(Arg(low=8 * _low, high=80), Arg(low=_low, high=9)),
            dtypes=_dtypes,
            hard=False,
            zero_sign=False,
            label=f"{_np.__name__}_{_dtypes[0]}",
        )
for _op, _fn, _np in (
    ("Eq", aicf.equal, np.equal),
    ("Ne", aicf.not_equal, np.not_equal),
    ("Lt", aicf.less, np.less),
    ("Le", aicf.less_equal, np.less_equal),
    ("Gt", aicf.greater, np.greater),
    ("Ge", aicf.greater_equal, np.greater_equal),
):
    pointwise(_op, _fn, _np, args=AB, grad=BOOL, result="bool")
    pointwise(
        _op,
        _fn,
        _np,
        args=(Arg(low=0, high=4), Arg(low=0, high=4)),
        grad=BOOL,
        dtypes=INTS,
        result="bool",
        hard=False,
        label="int",
    )
for _op, _fn, _np in (
    ("LogicalAnd", aicf.logical_and, np.logical_and),
    ("LogicalOr", aicf.logical_or, np.logical_or),
    ("LogicalXor", aicf.logical_xor, np.logical_xor),
):
    pointwise(
        _op,
        _fn,
        _np,
        args=(Arg(dtype="bool"), Arg(dtype="bool")),
        grad=BOOL,
        dtypes=("bool",),
        result="bool",
    )
pointwise(
    "Where",
    aicf.where,
    lambda c, a, b: np.where(c != 0, a, b),
    args=(Arg(dtype="bool"), Arg(), Arg()),
    grad=(1, 2),
    torch=lambda t, c, a, b: t.where(c, a, b),
)
for _to in FLOATS:
    pointwise(
        "Cast",
        lambda x, _to=_to: aicf.cast(x, _to),
        lambda x: x,
        grad=(0,),
        result=_to,
        torch=(lambda t, x: x.double()) if _to == "float64" else None,
        label=f"to_{_to}",
    )
for _to, _low, _high in (
    ("int32", -(2**31), 2**31 - 1),
    ("uint8", 0, 255),
    ("int8", -128, 127),
    ("int16", -(2**15), 2**15 - 1),
):
    pointwise(
        "Cast",
        lambda x, _to=_to: aicf.cast(x, _to),
        truncated(_low, _high),
        args=(Arg(low=-300, high=300),),
        grad=NO_FLOAT,
        result=_to,
        label=f"to_{_to}",
    )
pointwise(
    "Cast",
    lambda x: aicf.cast(x, "bool"),
    lambda x: x != 0,
    grad=NO_FLOAT,
    result="bool",
    label="to_bool",
)
for _from in (*INTS, "bool"):
    pointwise(
        "Cast",
        lambda x: aicf.cast(x, "float32"),
        lambda x: x,
        args=(Arg(low=0, high=99, dtype=_from),),
        dtypes=(_from,),
        hard=False,
        result="float32",
        label=f"from_{_from}",
    )

# ---- derivatives

derivative("ReluBwd", aicf.relu, lambda x, dy: dy * (x > 0), zero_sign=False)
derivative(
    "TanhBwd", aicf.tanh, lambda x, dy: dy / np.cosh(x) ** 2, extra=lambda x, dy: 8 * np.abs(dy)
)
derivative(
    "SigmoidBwd",
    aicf.sigmoid,
    lambda x, dy: dy * sigmoid(x) * sigmoid(-x),
    extra=lambda x, dy: 8 * np.abs(dy),
)
derivative(
    "SiluBwd",
    aicf.silu,
    lambda x, dy: dy * sigmoid(x) * (1 + x * sigmoid(-x)),
    ulp=4,
    extra=lambda x, dy: 8 * np.abs(dy),
)
derivative(
    "GeluErfBwd",
    aicf.gelu,
    lambda x, dy: dy * dgelu_erf(x),
    ulp=4,
    extra=lambda x, dy: 8 * np.abs(dy),
)
derivative(
    "GeluTanhBwd",
    lambda x: aicf.gelu(x, "tanh"),
    lambda x, dy: dy * dgelu_tanh(x),
    ulp=4,
    extra=lambda x, dy: 16 * np.abs(dy),
)
derivative(
    "SoftplusBwd",
    aicf.softplus,
    lambda x, dy: dy * np.where(x > 20, 1, sigmoid(x)),
    ulp=4,
    extra=lambda x, dy: 4 * np.abs(dy),
)
derivative(
    "LeakyReluBwd",
    lambda x: aicf.leaky_relu(x, 0.125),
    lambda x, dy: dy * np.where(x > 0, 1, 0.125),
)
derivative(
    "EluBwd",
    lambda x: aicf.elu(x, 1.5),
    lambda x, dy: dy * np.where(x > 0, 1, 1.5 * np.exp(np.minimum(x, 1))),
    ulp=4,
)
derivative(
    "ClipBwd",
    lambda x: aicf.clip(x, -0.75, 1.25),
    lambda x, dy: dy * ((x >= -0.75) & (x <= 1.25)),
    zero_sign=False,
)


def _both(fn, wins):
    def build(g, a, b, dy):
        grads = g.backward(fn(a, b), [a, b], grad=dy)
        return [grads[a], grads[b]]

    def reference(a, b, dy):
        share = np.where(a == b, 0.5, wins(a, b))
        return [dy * share, dy * (1 - share)]

    return build, reference


for _op, _fn, _wins in (
    ("MaximumBwd", aicf.maximum, np.greater),
    ("MinimumBwd", aicf.minimum, np.less),
):
    _build, _reference = _both(_fn, _wins)
    row(_op, (Arg(), Arg(), Arg()), _build, _reference, grad=(0, 1, 2), zero_sign=False)


@aicf.custom_gradient
def _square(x):
    return x * x, lambda dy: dy * x * 2.0


row(
    "CustomGradient",
    ONE,
    lambda g, x: _square(x),
    np.square,
    grad=(0,),
    torch=lambda t, x: x * x,
)

row(
    "KeptGradient",
    ONE,
    lambda g, x: aicf.cond(aicf.sum(x) < 1e30, _square, _square, x),
    np.square,
    grad=(0,),
    torch=lambda t, x: x * x,
)

# ---- movement

row(
    "Reshape",
    (Arg("abc"),),
    lambda g, x: aicf.reshape(x, (x.shape[1], x.shape[0] * x.shape[2])),
    lambda x: x.reshape(x.shape[1], x.shape[0] * x.shape[2]),
    grad=(0,),
    torch=lambda t, x: x.reshape(x.shape[1], -1),
)
row(
    "Reshape",
    (Arg("abc"),),
    lambda g, x: aicf.reshape(aicf.permute(x, (2, 0, 1)), (x.shape[2] * x.shape[0], 1, x.shape[1])),
    lambda x: x.transpose(2, 0, 1).reshape(x.shape[2] * x.shape[0], 1, x.shape[1]),
    grad=(0,),
    torch=lambda t, x: x.permute(2, 0, 1).reshape(-1, 1, x.shape[1]),
    label="permuted",
)
row(
    "Transpose",
    (Arg("abcd"),),
    lambda g, x: aicf.permute(x, (2, 0, -1, 1)),
    lambda x: x.transpose(2, 0, 3, 1),
    grad=(0,),
    torch=lambda t, x: x.permute(2, 0, 3, 1),
)
row(
    "Transpose",
    (Arg("abc"),),
    lambda g, x: [x.mT, aicf.transpose(x, 0, 1)],
    lambda x: [x.transpose(0, 2, 1), x.transpose(1, 0, 2)],
    label="two",
)
row(
    "BroadcastTo",
    (Arg("ac"),),
    lambda g, x: aicf.broadcast_to(
        x.reshape((x.shape[0], 1, x.shape[1])), (4, x.shape[0], 3, x.shape[1])
    ),
    lambda x: np.broadcast_to(x[:, None], (4, x.shape[0], 3, x.shape[1])),
    grad=(0,),
    torch=lambda t, x: x[:, None].expand(4, x.shape[0], 3, x.shape[1]),
)
for _dtype in (*INTS, "bool"):
    row(
        "Transpose",
        (Arg("abc", 0, 50),),
        lambda g, x: aicf.broadcast_to(aicf.permute(x, (2, 1, 0)), (2, *x.shape[::-1])),
        lambda x: np.broadcast_to(x.transpose(2, 1, 0), (2, *x.shape[::-1])),
        dtypes=(_dtype,),
        label=f"{_dtype}",
    )

# Their rows; they need `row` from here.
import op_cases_layers  # noqa: E402, F401
import op_cases_lines  # noqa: E402, F401
import op_cases_optim  # noqa: E402, F401
import op_cases_reduce  # noqa: E402, F401
