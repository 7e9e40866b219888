"""Values of a compiled step that it does not give, and what keeps it from making bad ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _core
from .graph import Value
from .layers import layers

if TYPE_CHECKING:
    from .step import Step


class Tap:
    """Reads a value of a step as it was in the last run; what `Step.tap` returns.

    While it lives, what the value is made of is computed once more before the last step of each
    call. `close()`, or the end of a `with`, ends that.
    """

    def __init__(self, core: Any, at: int, value: Value) -> None:
        self._core: _core.Tap | None = core
        self._at = at
        self.value = value

    def _open(self) -> _core.Tap:
        if self._core is None:
            raise _core.GraphError(f"tap: that of {self.value!r} is closed; need a new one")
        return self._core

    @property
    def step(self) -> int:
        """The number of the step whose value it reads, from 1; 0: none has run yet."""
        return self._open().step

    def read(self) -> _core.Array:
        """A copy of the value in host memory, of the dtype that the step stores it in.

        Raises: GraphError before the first run.
        """
        return self._open().read(self._at)

    def numpy(self) -> np.ndarray:
        """The same as a NumPy array; bfloat16 comes as float32, which is exact."""
        return self.read().numpy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.numpy(), dtype)

    def __float__(self) -> float:
        return float(self.read())

    def close(self) -> None:
        """Ends it; the step is no longer watched for its sake."""
        self._core = None

    def __enter__(self) -> Tap:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._core is None else f"step {self.step}"
        return f"aicf.Tap({self.value!r}, {state})"


class Taps(list[Tap]):
    """The Taps of several values, as a list; a `with`, or `close()`, ends them all."""

    def close(self) -> None:
        """Ends the taps."""
        for tap in self:
            tap.close()

    def __enter__(self) -> Taps:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Trap:
    """Keeps a step from making bad values; what `Step.trap` returns.

    `close()`, or the end of a `with`, ends that.
    """

    def __init__(self, core: Any) -> None:
        self._core: _core.Trap | None = core

    def close(self) -> None:
        """Ends it; steps run unchecked again."""
        self._core = None

    def __enter__(self) -> Trap:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def taps(step: Step, values: Sequence[Any]) -> Taps:
    """Taps of values of the graph that the step was compiled from, which are computed together."""
    graph = _graph(step, "tap")
    if not values:
        raise _core.GraphError("tap: got no value; need at least one")
    for value in values:
        if not isinstance(value, Value):
            raise _core.GraphError(f"tap: got {value!r}; need a Value, or several: tap(a, b)")
        if value.graph._core is not graph or value.id >= step._built.values:
            raise _core.GraphError(
                f"tap: {value!r} is not of the graph that was compiled; need a Value of that"
            )
    core = _core.Tap(step, graph, step._built, [value.id for value in values])
    return Taps(Tap(core, at, value) for at, value in enumerate(values))


def trap(step: Step, indices: bool = False) -> Trap:
    """A trap for all that the step computes; `indices`: for computed indices alone."""
    graph = _graph(step, "trap")
    of = layers(json.loads(graph.to_json()))
    names = [of.get(node, "") for node in range(step._built.nodes)]
    found = Trap(_core.Trap(step, graph, step._built, names, indices))
    # The step keeps it, whoever else does.
    traps: set[Trap] = vars(step).setdefault("_traps", set())
    traps -= {trap for trap in tuple(traps) if trap._core is None}
    traps.add(found)
    return found


def _graph(step: Step, doing: str) -> _core.Graph:
    if step._graph is None:
        raise _core.GraphError(f"{doing}: this step has no graph; need one that compile() made")
    return step._graph
