"""Which layer of a model each node of a graph belongs to, told by the names of its params."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LOSS = "loss"  # the layer of what makes a loss


def layer_of(name: str) -> str:
    """The layer that a param or state belongs to: "0.qkv" of "0.qkv.W"; of "tokens" itself."""
    return name.rpartition(".")[0] or name


def layers(record: dict[str, Any]) -> dict[int, str]:
    """The layer of each node by its id, from the record of a graph (`Graph.to_json`).

    A node that reads a param belongs to the param's layer, a gradient's to that of its forward
    node, what makes a loss to "loss". Any other goes with the newest value it reads, as an
    activation with what it follows; one that reads states alone belongs to those. "" stands for
    none.
    """
    values = record["values"]
    losses = {gradient["loss"] for gradient in record["gradients"]}
    producer: dict[int, int] = {}
    found: dict[int, str] = {}
    for node in record["nodes"]:
        inputs = [values[str(id)] for id in node["inputs"]]
        made = [producer[id] for id in node["inputs"] if id in producer]
        named = [leaf["name"] for role in ("param", "state") for leaf in inputs
                 if leaf["role"] == role and (role == "param" or not made)]  # fmt: skip
        if "grad_of" in node:
            layer = found[node["grad_of"]]
        elif losses.intersection(node["outputs"]):
            layer = LOSS
        elif named:
            layer = layer_of(named[0])
        else:
            layer = found[max(made)] if made else ""
        found[node["id"]] = layer
        for id in node["outputs"]:
            producer[id] = node["id"]
    return found


def first_part(op: Mapping[str, Any]) -> Mapping[str, Any]:
    """The op that a launch or lowered op begins with: a member of a group, a step of a region."""
    while parts := op.get("members") or op.get("body"):
        op = parts[0]
    return op


def forward_nodes(record: dict[str, Any]) -> set[int]:
    """The nodes that the losses are made of; all nodes where nothing is differentiated."""
    nodes = record["nodes"]
    if not record["gradients"]:
        return {node["id"] for node in nodes}
    wanted = {gradient["loss"] for gradient in record["gradients"]}
    found = set()
    for node in reversed(nodes):
        if wanted.intersection(node["outputs"]):
            found.add(node["id"])
            wanted.update(node["inputs"])
    return found
