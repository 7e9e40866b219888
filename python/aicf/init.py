"""How params and states begin. Random values depend on (seed, value name, element index) alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ._core import GraphError
from .arguments import checked

Init = tuple[str] | tuple[str, float] | tuple[str, float, float]


@checked
def zeros() -> Init:
    """All zero.

    >>> aicf.init.zeros()
    ('zeros',)
    """
    return ("zeros",)


@checked
def ones() -> Init:
    """All one.

    >>> aicf.init.ones()
    ('constant', 1.0)
    """
    return ("constant", 1.0)


@checked
def constant(value: float) -> Init:
    """All `value`.

    >>> aicf.init.constant(0.5)
    ('constant', 0.5)
    """
    return ("constant", value)


@checked
def uniform(low: float = 0.0, high: float = 1.0) -> Init:
    """Uniform in [low, high).

    >>> aicf.init.uniform(-1.0, 1.0)
    ('uniform', -1.0, 1.0)
    """
    if not low <= high:
        raise GraphError(f"uniform: low is {low}, high {high}; need low <= high")
    return ("uniform", low, high)


@checked
def normal(mean: float = 0.0, std: float = 1.0) -> Init:
    """Normal with the given mean and standard deviation (Box-Muller).

    >>> aicf.init.normal(std=0.02)
    ('normal', 0.0, 0.02)
    """
    if not std >= 0:
        raise GraphError(f"normal: std is {std}; need 0 or more")
    return ("normal", mean, std)


@checked
def kaiming_uniform(shape: Sequence[int]) -> Init:
    """Uniform in ±sqrt(6 / fan_in), fan_in the product of shape[1:] (He et al., 2015).

    >>> aicf.init.kaiming_uniform((8, 6))
    ('uniform', -1.0, 1.0)
    """
    bound = math.sqrt(6.0 / max(math.prod(shape[1:]), 1))
    return uniform(-bound, bound)


@checked
def default(shape: Sequence[int]) -> Init:
    """What `Graph.param` takes for init=None: ±1/sqrt(fan_in) for rank >= 2, zeros below.

    >>> aicf.init.default((8, 4))
    ('uniform', -0.5, 0.5)
    """
    if len(shape) < 2:
        return zeros()
    bound = 1.0 / math.sqrt(max(math.prod(shape[1:]), 1))
    return uniform(-bound, bound)


@checked
def xavier_uniform(shape: Sequence[int]) -> Init:
    """Uniform in ±sqrt(6 / (fan_in + fan_out)), of a weight (out, in, ...) (Glorot and Bengio,
    2010).

    >>> aicf.init.xavier_uniform((8, 16))
    ('uniform', -0.5, 0.5)
    """
    taps = math.prod(shape[2:])
    bound = math.sqrt(6.0 / max(sum(shape[:2]) * taps, 1))
    return uniform(-bound, bound)
