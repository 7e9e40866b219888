"""Statistics of values inside a step: what `Graph.statistics` adds and `Step.statistics` reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from . import _core
from .graph import Graph, Value
from .layers import forward_nodes, layers
from .movement import stack
from .ops import cast, equal, max, mean, min

PREFIX = "stats."  # of the outputs


class Statistics(NamedTuple):
    """Of one value in one step, in float32."""

    min: float
    max: float
    mean: float
    zeros: float  # the share of elements that are 0


def of_layers(graph: Graph) -> dict[str, Value]:
    """What each layer gives by its name, and the gradient of each param as `<param>.grad`."""
    record = json.loads(graph.to_json())
    of, forward = layers(record), forward_nodes(record)
    found = {}
    for node in record["nodes"]:
        if node["id"] in forward and of[node["id"]]:
            found[of[node["id"]]] = Value(graph, node["outputs"][0])
    for gradient in record["gradients"]:
        leaf = record["values"][str(gradient["value"])]
        if leaf["role"] == "param":
            found[f"{leaf['name']}.grad"] = Value(graph, gradient["grad"])
    return {name: value for name, value in found.items() if 0 not in value.shape}


def add(graph: Graph, values: Mapping[str, Any]) -> None:
    """One output of four numbers for each value."""
    if not isinstance(values, Mapping):
        raise _core.GraphError(f"statistics: got {values!r}; need a mapping of name to Value")
    taken = {output["name"] for output in json.loads(graph.to_json())["outputs"]}
    for name, value in values.items():
        if not isinstance(name, str) or not isinstance(value, Value):
            raise _core.GraphError(f"statistics: got {name!r}: {value!r}; need a Value by its name")
        graph._id(value, "statistics")
        if 0 in value.shape:
            raise _core.ShapeError(f'statistics: "{name}" is {value!r}; need elements')
        if PREFIX + name in taken:
            raise _core.GraphError(
                f'statistics: "{name}" has statistics already; need another name'
            )
    for name, value in values.items():  # all are well: the graph changes as a whole or not at all
        x = value if value.dtype == "float32" else cast(value, "float32")
        zeros = mean(cast(equal(x, 0.0), "float32"))
        graph.output(PREFIX + name, stack([min(x), max(x), mean(x), zeros]))


def read(outputs: _core.Outputs) -> dict[str, Statistics]:
    """Those of the last step, by the names that `add` was given."""
    found = {
        name.removeprefix(PREFIX): Statistics(*map(float, np.asarray(outputs[name])))
        for name in outputs
        if name.startswith(PREFIX)
    }
    if not found:
        raise _core.GraphError(
            "statistics: the step has none; need a call of Graph.statistics() before compile()"
        )
    return found
