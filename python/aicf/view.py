"""One page that shows a step three times, with the same ids: as IR, lowered, and launched."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

from . import _core
from .arena import Arena
from .layers import first_part, layer_of, layers
from .summary import type_text
from .units import bytes_text, count_text, time_text

# What a line of the page says: op, ids of what it reads, ids of what it writes, more words.
Line = tuple[str, list[int], list[int], str]


def page(
    record: dict[str, Any],
    lowered: Sequence[dict[str, Any]],
    plan: dict[str, Any],
    times: Sequence[float] | None = None,
    history: Any = None,
    statistics: Any = None,
) -> str:
    """The page as text; it needs no other file.

    Args:
        record: of the graph, from `Graph.to_json`.
        lowered: its ops before any pass, from `Graph.lower`.
        plan: the record of the step's plan.
        times: seconds of each launch.
        history, statistics: as `Step.to_html` takes them.

    Raises: ShapeError when there are not as many times as launches, DTypeError when one is no
        length of time.
    """
    launches = plan["ops"]
    if times is not None:
        if len(times) != len(launches):
            raise _core.ShapeError(
                f"to_html: {len(times)} times, the step has {len(launches)} launches; need one each"
            )
        for time in times:
            if not 0 <= time < math.inf:
                raise _core.DTypeError(f"to_html: a time is {time!r}; need seconds, at least 0")
    named = _Layers(layers(record))
    columns = [
        {"id": "ir", "title": "IR", "rows": list(_ir_rows(record, named))},
        {"id": "lowered", "title": "lowered", "rows": list(_op_rows(lowered, named))},
        {"id": "launched", "title": "launched", "rows": list(_op_rows(launches, named, times))},
    ]
    columns[0]["note"] = f"{len(record['nodes'])} nodes, as written"
    columns[1]["note"] = f"{len(lowered)} ops, before the passes"
    columns[2]["note"] = f"{len(launches)} launches" + (
        f", {time_text(sum(times))}" if times is not None else ""
    )
    data = {
        "columns": columns,
        "layers": named.names,
        "values": _values(record, [*lowered, *launches], plan["values"]),
        "views": _views(record, lowered),
    }
    facts = (
        f"{plan['device']}, math {plan['math']}",
        f"{len(launches)} launches",
        f"{count_text(plan['flops'])} flops",
        f"{bytes_text(plan['bytes_moved'])} moved",
        f"peak {bytes_text(plan['peak_bytes'])}",
    )
    parts = {
        "title": escape(plan["graph"]),
        "facts": escape(" · ".join(facts)),
        "recorded": _recorded(history, statistics),
        "arena": Arena(plan).svg(),
        # JSON inside a script ends at the first "</".
        "data": json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
    }
    template = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], template)


def _recorded(history: Any, statistics: Any) -> str:
    from .curves import curves, statistics_table

    parts = []
    if history is not None:
        parts.append(f'<div class="curves">{curves(history)}</div>')
    if statistics is not None:
        parts.append(f'<div class="scroll">{statistics_table(statistics)}</div>')
    if not parts:
        return ""
    return (
        '<details id="recorded" open><summary>recorded</summary>'
        f'<div class="recorded">{"".join(parts)}</div></details>'
    )


class _Layers:
    """The names of layers, each once; rows hold their numbers."""

    def __init__(self, of_node: dict[int, str]) -> None:
        self.of_node = of_node
        self.names: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, name: str) -> int:
        if name not in self._numbers:
            self._numbers[name] = len(self.names)
            self.names.append(name)
        return self._numbers[name]

    def row(self, no: object, layer: str, line: Line, sub: Iterable[Line] = ()) -> dict[str, Any]:
        return {"no": no, "layer": self.number(layer), "line": line, "sub": list(sub)}


def _ir_rows(record: dict[str, Any], named: _Layers) -> Iterator[dict[str, Any]]:
    for value in record["values"].values():
        if value["role"] != "temp":
            layer = layer_of(value["name"]) if value["role"] in ("param", "state") else ""
            leaf = f"{value['name']} {type_text(value['dtype'], value['shape'])}"
            yield named.row("", layer, (value["role"], [], [value["id"]], leaf))
    for node in record["nodes"]:
        words = [_attrs(node["attrs"])]
        words += [f"of node {node['grad_of']}"] if "grad_of" in node else []
        words += [node["where"]] if "where" in node else []
        line = node["op"], node["inputs"], node["outputs"], " ".join(filter(None, words))
        yield named.row(node["id"], named.of_node[node["id"]], line)
    for assign in record["assigns"]:
        yield named.row("", "", ("assign", [assign["source"]], [], f"to %{assign['target']}"))
    for output in record["outputs"]:
        yield named.row("", "", ("output", [output["value"]], [], output["name"]))


def _op_rows(
    ops: Sequence[dict[str, Any]], named: _Layers, times: Sequence[float] | None = None
) -> Iterator[dict[str, Any]]:
    for i, op in enumerate(ops):
        sub = list(_steps(op))
        line = _line(op)
        if "members" in op:  # they hold its operands
            line = line[0], [], [], line[3]
            for member in op["members"]:
                sub += [_line(member), *_steps(member)]
        row = named.row(i, named.of_node.get(first_part(op)["node"], ""), line, sub)
        if times is not None:
            row |= {"time": time_text(times[i]), "seconds": times[i]}
        yield row


def _line(op: dict[str, Any]) -> Line:
    reads = [operand["value"] for operand in op["inputs"]]
    writes = [operand["value"] for operand in op["outputs"]]
    words = [_attrs(op["attrs"])]
    if "kernel" in op:
        words += [op["kernel"] if "members" not in op else "", f"after {op['waits']}"]
    name = f"{op['op']} {op['anchor']}" if "anchor" in op else op["op"]
    return name, reads, writes, " ".join(filter(None, words))


def _steps(op: dict[str, Any]) -> Iterator[Line]:
    """The steps of a fused op; their operands are numbers of its operands and inner values."""
    operands = [x["value"] for kind in ("inputs", "outputs", "inner") for x in op.get(kind, ())]
    for step in op.get("body", ()):
        reads = [operands[i] for i in step["inputs"]]
        writes = [operands[i] for i in step["outputs"]]
        yield f"· {step['op']}", reads, writes, _attrs(step["attrs"])


def _attrs(attrs: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in attrs.items())


def _views(record: dict[str, Any], lowered: Sequence[dict[str, Any]]) -> dict[int, int]:
    """The value that each view looks at: a node that reaches an output or an assign, and that no
    op comes from, moves its first input and costs nothing."""
    worked = {op["node"] for op in lowered}
    live = {end[key] for key, kind in (("value", "outputs"), ("source", "assigns"))
            for end in record[kind]}  # fmt: skip
    found = {}
    for node in reversed(record["nodes"]):
        if live.intersection(node["outputs"]):
            live.update(node["inputs"])
            if node["id"] not in worked and node["inputs"]:
                found.update(dict.fromkeys(node["outputs"], node["inputs"][0]))
    return found


def _values(
    record: dict[str, Any], ops: Sequence[dict[str, Any]], places: dict[str, dict[str, Any]]
) -> dict[int, tuple[str, str, str]]:
    """Name, type and place of each value, of those that passes made too."""
    found = {
        value["id"]: (value["name"], type_text(value["dtype"], value["shape"]))
        for value in record["values"].values()
    }
    every = [inner for op in ops for inner in [op, *op.get("members", ())]]
    for kind in ("outputs", "inner", "inputs"):  # an input may be seen through a view
        for op in every:
            for x in op.get(kind, ()):
                place = places.get(str(x["value"]), {})
                known = place.get("name", ""), type_text(x["dtype"], x["shape"])
                found.setdefault(x["value"], known)
    return {id: (*known, _place(id, places.get(str(id)))) for id, known in found.items()}


def _place(id: int, place: dict[str, Any] | None) -> str:
    if place is None:
        return "no place of its own"
    if place["offset"] < 0:
        return "shared with another step"
    text = f"{place['region']}+{place['offset']}, {place['bytes']} bytes"
    return text + (f", in place of %{place['storage']}" if place["storage"] != id else "")
