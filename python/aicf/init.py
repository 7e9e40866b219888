"""How params and states begin. Random values depend on (seed, value name, element index) alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .arguments import checked

Init = tuple[str] | tuple[str, float] | tuple[str, float, float]


@checked
def zeros() -> Init:
    """All zero."""
    return ("zeros",)


@checked
def ones() -> Init:
    """All one."""
    return ("constant", 1.0)


@checked
def constant(value: float) -> Init:
    """All `value`."""
    return ("constant", value)


@checked
def uniform(low: float = 0.0, high: float = 1.0) -> Init:
    """Uniform in [low, high)."""
    return ("uniform", low, high)


@checked
def normal(mean: float = 0.0, std: float = 1.0) -> Init:
    """Normal with the given mean and standard deviation (Box-Muller)."""
    return ("normal", mean, std)


@checked
def kaiming_uniform(shape: Sequence[int]) -> Init:
    """Uniform in ±sqrt(6 / fan_in), fan_in the product of shape[1:] (He et al., 2015)."""
    bound = math.sqrt(6.0 / max(math.prod(shape[1:]), 1))
    return uniform(-bound, bound)


@checked
def default(shape: Sequence[int]) -> Init:
    """What `Graph.param` takes for init=None: ±1/sqrt(fan_in) for rank >= 2, zeros below."""
    if len(shape) < 2:
        return zeros()
    bound = 1.0 / math.sqrt(max(math.prod(shape[1:]), 1))
    return uniform(-bound, bound)
