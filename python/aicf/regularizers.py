"""Layers with random parts: PyTorch's names, formulas and default values."""

from __future__ import annotations

import math

from ._core import GraphError, ShapeError
from .arguments import checked
from .graph import Value
from .movement import broadcast_to
from .nn_functions import dropout
from .ops import _as, _widened, add, greater, leaky_relu, mul, where

__all__ = [
    "alpha_dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "feature_alpha_dropout",
    "rrelu",
]

# Where SELU(x) goes as x does to minus infinity (Klambauer et al., 2017).
_LEAST = -1.7580993408473766


def _channels(name: str, x: Value, ranks: tuple[int, ...]) -> list[int]:
    """The shape of a number for each channel: of [N, C, ...], or [C, ...] of the fewest axes."""
    if x.ndim not in ranks:
        raise ShapeError(f"{name}: x is {x!r}; need rank {' or '.join(map(str, ranks))}")
    own = 1 if len(ranks) > 1 and x.ndim == ranks[0] else 2
    return [*x.shape[:own], *[1] * (x.ndim - own)]


def _dropped(name: str, x: Value, p: float, training: bool, ranks: tuple[int, ...]) -> Value:
    shape = _channels(name, x, ranks)
    if not training:
        return x
    return mul(x, dropout(broadcast_to(x.graph.constant(1.0, x.dtype), shape), p))


@checked
def dropout1d(x: Value, p: float = 0.5, training: bool = True) -> Value:
    """`dropout` of whole channels of [N, C, L] or [C, L].

    >>> aicf.dropout1d(x, 0.1).shape
    (4, 3)
    """
    return _dropped("dropout1d", x, p, training, (2, 3))


@checked
def dropout2d(x: Value, p: float = 0.5, training: bool = True) -> Value:
    """`dropout` of whole channels of [N, C, H, W], or of [N, C, L] as PyTorch has it.

    >>> aicf.dropout2d(g.input("images", (2, 3, 8, 8)), 0.1).shape
    (2, 3, 8, 8)
    """
    shape_of = (3,) if x.ndim == 3 else (4,)
    return _dropped("dropout2d", x, p, training, shape_of)


@checked
def dropout3d(x: Value, p: float = 0.5, training: bool = True) -> Value:
    """`dropout` of whole channels of [N, C, D, H, W] or [C, D, H, W].

    >>> aicf.dropout3d(g.input("volume", (3, 4, 8, 8)), 0.1).shape
    (3, 4, 8, 8)
    """
    return _dropped("dropout3d", x, p, training, (4, 5))


@checked
def alpha_dropout(x: Value, p: float = 0.5, training: bool = False) -> Value:
    """Dropout that keeps mean 0 and variance 1, for nets of SELU (Klambauer et al., 2017).

    What is left out takes SELU's least value; then all is scaled and shifted.

    >>> aicf.alpha_dropout(x, 0.1, training=True).shape
    (4, 3)
    """
    return _alpha("alpha_dropout", x, p, training, list(x.shape))


@checked
def feature_alpha_dropout(x: Value, p: float = 0.5, training: bool = False) -> Value:
    """`alpha_dropout` of whole channels of [N, C, ...].

    >>> aicf.feature_alpha_dropout(x, 0.1, training=True).shape
    (4, 3)
    """
    if training and x.ndim < 2:
        raise ShapeError(f"feature_alpha_dropout: x is {x!r}; need [N, C, ...]")
    shape = [*x.shape[:2], *[1] * (len(x.shape) - 2)]
    return _alpha("feature_alpha_dropout", x, p, training, shape)


def _alpha(name: str, x: Value, p: float, training: bool, shape: list[int]) -> Value:
    if not 0 <= p <= 1:
        raise GraphError(f"{name}: p is {p}; need 0 <= p <= 1")
    if not training:
        return x
    if p == 1:
        return mul(x, 0.0)
    wide = _widened(x)
    kept = greater(dropout(broadcast_to(x.graph.constant(1.0, wide.dtype), shape), p), 0.0)
    scale = 1 / math.sqrt((1 - p) * (1 + p * _LEAST**2))
    left = where(kept, wide, _LEAST)
    return _as(add(mul(left, scale), -scale * p * _LEAST), x.dtype)


@checked
def rrelu(x: Value, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False) -> Value:
    """leaky_relu with a fresh slope from [lower, upper) for each element; their mean by default.

    >>> aicf.rrelu(x, training=True).shape
    (4, 3)
    """
    if not lower <= upper:
        raise GraphError(f"rrelu: lower is {lower}, upper {upper}; need lower <= upper")
    if not training or lower == upper:
        return leaky_relu(x, (lower + upper) / 2)
    wide = _widened(x)
    slope = x.graph.random_uniform(x.shape, lower, upper, wide.dtype)
    return _as(where(greater(wide, 0.0), wide, mul(wide, slope)), x.dtype)
