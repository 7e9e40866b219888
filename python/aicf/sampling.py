"""Random draws composed of `Graph.random_uniform`: fresh at every step, the same for a seed.

A uniform number has 24 random bits, a whole number and a permutation are made of 48.
"""

from __future__ import annotations

import math

from ._core import DTypeError, GraphError, ShapeError
from .arguments import checked
from .arrays import _hot, moveaxis
from .graph import Graph, Value
from .indexing import argsort
from .movement import _axis, detach
from .ops import (
    _as,
    _widened,
    add,
    argmax,
    cast,
    clip,
    div,
    erf,
    exp,
    floor,
    less,
    log,
    log1p,
    mul,
    neg,
    sign,
    softmax,
    sqrt,
    sub,
)

__all__ = ["bernoulli", "categorical", "gumbel_softmax"]


def bernoulli(p: Value) -> Value:
    """1 with probability p, else 0, in p's dtype; it has no gradient.

    >>> aicf.bernoulli(aicf.sigmoid(x)).shape
    (4, 3)
    """
    drawn = p.graph.random_uniform(p.shape)
    return cast(less(drawn, _as(p, "float32")), p.dtype)


def categorical(logits: Value, axis: int = -1) -> Value:
    """int64 classes with the probabilities softmax(logits) along `axis`, by the Gumbel-max trick.

    >>> aicf.categorical(x).shape
    (4,)
    """
    return argmax(_perturbed(logits), _axis("categorical", logits, axis))


def gumbel_softmax(logits: Value, tau: float = 1.0, hard: bool = False, axis: int = -1) -> Value:
    """softmax((logits + Gumbel noise) / tau) along `axis` (Jang et al., 2017).

    Args:
        hard: 1 at the largest, else 0, with the gradient of the softmax.

    >>> aicf.gumbel_softmax(x, tau=0.5, hard=True).shape
    (4, 3)
    """
    if not tau > 0:
        raise GraphError(f"gumbel_softmax: tau is {tau}; need tau > 0")
    at = _axis("gumbel_softmax", logits, axis)
    y = softmax(div(_perturbed(logits), tau), at)
    if hard:
        chosen = moveaxis(_hot(argmax(y, at), logits.shape[at], y.dtype), -1, at)
        y = add(detach(sub(chosen, y)), y)
    return _as(y, logits.dtype)


def _perturbed(logits: Value) -> Value:
    """Plus −log(−log(1 − u)), where u lies in the middle of its 2**-24."""
    # float32 has no middle above 1/2, and the last would round to 1, of which the noise is −inf.
    u = clip(add(logits.graph.random_uniform(logits.shape), 2.0**-25), max=1 - 2.0**-24)
    noise = neg(log(neg(log1p(neg(u)))))
    wide = _widened(logits)
    return add(wide, _as(noise, wide.dtype))


# ---- by shape: methods of Graph


def _fine(g: Graph, shape: list[int]) -> Value:
    """float64 in [0, 1), of 48 random bits."""
    high, low = (g.random_uniform(shape, 0.0, 1.0, "float64") for _ in range(2))
    return add(high, mul(low, 2.0**-24))


# The whole numbers that each dtype holds, of floats those below which none is missing.
_EXACT = {n: (-(2**k), 2**k) for n, k in (("float16", 11), ("bfloat16", 8), ("float32", 24))}
_EXACT |= {f"int{k}": (-(2 ** (k - 1)), 2 ** (k - 1) - 1) for k in (8, 16, 32, 64)}
_EXACT |= {"uint8": (0, 255), "bool": (0, 1), "float64": (-(2**53), 2**53)}


def _random_int(g: Graph, shape: list[int], low: int, high: int, dtype: str) -> Value:
    if not low < high or high - low > 2**32:
        raise GraphError(f"random_int: low is {low}, high is {high}; need 1 to 2**32 numbers")
    least, most = _EXACT.get(dtype, (low, high - 1))  # what is no dtype is refused by its name
    if low < least or high - 1 > most:
        raise DTypeError(
            f"random_int: low is {low}, high is {high}, which {dtype} does not hold; need numbers "
            f"in [{least}, {most}]"
        )
    drawn = cast(floor(mul(_fine(g, shape), float(high - low))), "int64")
    # It is never more than that; whoever takes rows by it knows so by this.
    return _as(add(clip(drawn, 0, high - low - 1), low), dtype)


def _random_permutation(g: Graph, n: int) -> Value:
    if not 0 <= n < 2**31:
        raise ShapeError(f"random_permutation: n is {n}; need 0 to {2**31 - 1}")
    return argsort(_fine(g, [n]))


def _random_truncated_normal(
    g: Graph, shape: list[int], mean: float, std: float, low: float, high: float, dtype: str
) -> Value:
    if not (low < high and std >= 0 and math.isfinite(std) and math.isfinite(mean)):
        raise GraphError(
            f"random_truncated_normal: mean is {mean}, std is {std}, low is {low}, high is {high}; "
            "need finite numbers, std >= 0 and low < high"
        )
    a, b = (math.erf(limit / math.sqrt(2)) for limit in (low, high))
    if not a < b:
        raise GraphError(
            f"random_truncated_normal: low is {low}, high is {high}; nothing of float64's normal "
            "distribution lies between; need one of them nearer to 0"
        )
    u = g.random_uniform(shape, a, b, "float64")
    z = clip(mul(_erf_inverse(u), math.sqrt(2)), low, high)
    return _as(add(mul(z, std), mean), dtype)


def _erf_inverse(x: Value) -> Value:
    """Of float64, by a start within 0.4 % (Winitzki, 2008) and three steps of Newton's method."""
    x = clip(x, -(1 - 2.0**-53), 1 - 2.0**-53)
    a = 0.147
    half = mul(log1p(neg(mul(x, x))), 0.5)
    b = add(half, 2 / (math.pi * a))
    y = mul(sign(x), sqrt(sub(sqrt(sub(mul(b, b), mul(half, 2 / a))), b)))
    for _ in range(3):
        slope = mul(exp(neg(mul(y, y))), 2 / math.sqrt(math.pi))
        y = sub(y, div(sub(erf(y), x), slope))
    return y


for _name in __all__:
    globals()[_name] = checked(globals()[_name])
