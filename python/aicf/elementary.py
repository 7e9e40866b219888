"""More functions of the elements of Values, each one kernel: NumPy's names and special values.

Their gradients are made of ops, so that they have gradients of their own; bits have none.
"""

from __future__ import annotations

import numpy as np

from .arguments import checked
from .graph import Operand, Value
from .operands import _emit

__all__ = [
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "bitwise_and",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "cosh",
    "exp2",
    "expm1",
    "hypot",
    "log10",
    "log2",
    "sinh",
    "tan",
]


def acos(x: Value) -> Value:
    """Arccosine in [0, π], NaN outside [−1, 1]; within 1 ULP in float32 and float64.

    >>> aicf.acos(aicf.tanh(x)).shape
    (4, 3)
    """
    return _emit("Acos", "acos", x)


def acosh(x: Value) -> Value:
    """The number >= 0 whose cosh is x, NaN below 1; within 1 ULP in float32 and float64.

    >>> aicf.acosh(aicf.exp(x) + 1.0).shape
    (4, 3)
    """
    return _emit("Acosh", "acosh", x)


def asin(x: Value) -> Value:
    """Arcsine in [−π/2, π/2], NaN outside [−1, 1]; within 1 ULP in float32 and float64.

    >>> aicf.asin(aicf.tanh(x)).shape
    (4, 3)
    """
    return _emit("Asin", "asin", x)


def asinh(x: Value) -> Value:
    """The number whose sinh is x; within 1 ULP in float32 and float64.

    >>> aicf.asinh(x).shape
    (4, 3)
    """
    return _emit("Asinh", "asinh", x)


def atan(x: Value) -> Value:
    """Arctangent in [−π/2, π/2]; within 1 ULP in float32 and float64.

    >>> aicf.atan(x).shape
    (4, 3)
    """
    return _emit("Atan", "atan", x)


def atan2(y: Operand, x: Operand) -> Value:
    """Angle of the point (x, y) in [−π, π], with the signs of zeros; within 1 ULP.

    >>> aicf.atan2(y, x).shape
    (4, 3)
    """
    return _emit("Atan2", "atan2", y, x)


def atanh(x: Value) -> Value:
    """The number whose tanh is x, NaN outside [−1, 1]; within 1 ULP in float32 and float64.

    >>> aicf.atanh(aicf.tanh(x)).shape
    (4, 3)
    """
    return _emit("Atanh", "atanh", x)


def cosh(x: Value) -> Value:
    """Hyperbolic cosine; within 1 ULP in float32 and float64.

    >>> aicf.cosh(x).shape
    (4, 3)
    """
    return _emit("Cosh", "cosh", x)


def exp2(x: Value) -> Value:
    """2**x; within 1 ULP in float32 and float64.

    >>> aicf.exp2(x).shape
    (4, 3)
    """
    return _emit("Exp2", "exp2", x)


def expm1(x: Value) -> Value:
    """exp(x) − 1 without the rounding of exp(x); within 1 ULP in float32 and float64.

    >>> aicf.expm1(x).shape
    (4, 3)
    """
    return _emit("Expm1", "expm1", x)


def hypot(x: Operand, y: Operand) -> Value:
    """sqrt(x² + y²) without overflow; within 1 ULP in float32 and float64.

    >>> aicf.hypot(x, y).shape
    (4, 3)
    """
    return _emit("Hypot", "hypot", x, y)


def log10(x: Value) -> Value:
    """Logarithm to the base 10; within 1 ULP in float32 and float64.

    >>> aicf.log10(aicf.exp(x)).shape
    (4, 3)
    """
    return _emit("Log10", "log10", x)


def log2(x: Value) -> Value:
    """Logarithm to the base 2; within 1 ULP in float32 and float64.

    >>> aicf.log2(aicf.exp(x)).shape
    (4, 3)
    """
    return _emit("Log2", "log2", x)


def sinh(x: Value) -> Value:
    """Hyperbolic sine; within 1 ULP in float32 and float64.

    >>> aicf.sinh(x).shape
    (4, 3)
    """
    return _emit("Sinh", "sinh", x)


def tan(x: Value) -> Value:
    """Tangent of x in radians; within 1 ULP in float32 and float64, for every x.

    >>> aicf.tan(x).shape
    (4, 3)
    """
    return _emit("Tan", "tan", x)


# ---- bits


def bitwise_and(a: Operand, b: Operand) -> Value:
    """a & b, of integers bit by bit, of bools as `logical_and`.

    >>> (labels & 3).dtype
    'int64'
    """
    if _of_bools(a, b):
        return _emit("LogicalAnd", "logical_and", a, b)
    return _emit("BitwiseAnd", "bitwise_and", a, b)


def bitwise_or(a: Operand, b: Operand) -> Value:
    """a | b, of integers bit by bit, of bools as `logical_or`.

    >>> (labels | 3).dtype
    'int64'
    """
    if _of_bools(a, b):
        return _emit("LogicalOr", "logical_or", a, b)
    return _emit("BitwiseOr", "bitwise_or", a, b)


def bitwise_xor(a: Operand, b: Operand) -> Value:
    """a ^ b, of integers bit by bit, of bools as `logical_xor`.

    >>> (labels ^ 3).dtype
    'int64'
    """
    if _of_bools(a, b):
        return _emit("LogicalXor", "logical_xor", a, b)
    return _emit("BitwiseXor", "bitwise_xor", a, b)


def bitwise_invert(x: Value) -> Value:
    """~x, of integers bit by bit, of bools as `logical_not`.

    >>> (~labels).dtype
    'int64'
    """
    if _bool(x):
        return _emit("LogicalNot", "logical_not", x)
    return bitwise_xor(x, 255 if x.dtype == "uint8" else -1)


def bitwise_left_shift(a: Operand, b: Operand) -> Value:
    """a · 2**b of integers, as far as they hold it; of b < 0 it is 0.

    >>> (labels << 2).dtype
    'int64'
    """
    return _emit("BitwiseLeftShift", "bitwise_left_shift", a, b)


def bitwise_right_shift(a: Operand, b: Operand) -> Value:
    """floor(a / 2**b) of integers; of b < 0 it is 0, or −1 where a < 0.

    >>> (labels >> 2).dtype
    'int64'
    """
    return _emit("BitwiseRightShift", "bitwise_right_shift", a, b)


def _bool(x: Operand) -> bool:
    return x.dtype == "bool" if isinstance(x, (Value, np.ndarray)) else isinstance(x, bool)


def _of_bools(a: Operand, b: Operand) -> bool:
    """A bool that is a number is one of the other operand's dtype."""
    return any(_bool(x) for x in (a, b) if isinstance(x, (Value, np.ndarray)))


for _name in __all__:
    globals()[_name] = checked(globals()[_name])

for _sign, _fn in {
    "and": bitwise_and,
    "or": bitwise_or,
    "xor": bitwise_xor,
    "lshift": bitwise_left_shift,
    "rshift": bitwise_right_shift,
}.items():
    setattr(Value, f"__{_sign}__", lambda self, other, fn=_fn: fn(self, other))
    setattr(Value, f"__r{_sign}__", lambda self, other, fn=_fn: fn(other, self))
setattr(Value, "__invert__", bitwise_invert)  # noqa: B010
