"""A model as a table: its layers, what they give, how large they are and what they cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, NamedTuple

from .layers import first_part, forward_nodes, layer_of, layers
from .units import bytes_text, count_text, printable

ITEM_BYTES = {"float64": 8, "int64": 8, "float16": 2, "bfloat16": 2, "int16": 2}
ITEM_BYTES |= {"uint8": 1, "int8": 1, "bool": 1}
SHORT = {"float": "f", "int": "i", "uint": "u", "bfloat": "bf"}


class Layer(NamedTuple):
    """One line of a summary; `bytes_moved` and `launches` are those of a compiled step."""

    name: str  # "" for what belongs to no layer
    ops: tuple[str, ...]  # of its forward nodes, each once
    output: str  # the type of the last forward value: "f32[64, 8]"
    params: int  # elements
    param_bytes: int
    flops: int  # of the whole step, by the ops' own estimates
    bytes_moved: int | None = None
    launches: int | None = None


class Summary:
    """Layers in the order of the model. Prints as a table, in a notebook too.

    Args:
        title: what stands above it.
        rows: the layers.
        notes: lines below it.
    """

    def __init__(self, title: str, rows: Sequence[Layer], notes: Sequence[str] = ()) -> None:
        self.title = title
        self.rows = list(rows)
        self.notes = list(notes)

    @property
    def total(self) -> Layer:
        """All layers together."""
        return _joined("total", self.rows)

    def __str__(self) -> str:
        head, *body, total = self._cells()
        return text_table(printable(self.title), head, body, 3, total, self.notes)

    def _repr_html_(self) -> str:
        head, *body = self._cells()
        return html_table(self.title, head, body, 3, self.notes)

    def _cells(self) -> list[list[str]]:
        compiled = any(row.launches is not None for row in self.rows)
        head = ["layer", "ops", "output", "params", "bytes", "flops"]
        table = [head + ["moved", "launches"] * compiled]
        for row in [*self.rows, self.total]:
            cells = [
                printable(row.name) or "(none)",
                ", ".join(row.ops[:3]) + (", …" if len(row.ops) > 3 else ""),
                row.output,
                f"{row.params:,}" if row.params else "",
                bytes_text(row.param_bytes) if row.params else "",
                count_text(row.flops) if row.flops else "",
            ]
            if compiled:
                cells.append(bytes_text(row.bytes_moved) if row.bytes_moved else "")
                cells.append(str(row.launches) if row.launches else "")
            table.append(cells)
        return table


def text_table(
    title: str,
    head: Sequence[str],
    body: Sequence[Sequence[str]],
    words: int,
    total: Sequence[str],
    notes: Sequence[str] = (),
) -> str:
    """A table as text; the first `words` columns stand left, numbers right."""
    widths = [max(map(len, column)) for column in zip(head, *body, total, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if i < words else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *body, total)
    ]
    rule = "-" * (sum(widths) + 2 * len(widths) - 2)
    return "\n".join([title, rule, lines[0], rule, *lines[1:-1], rule, lines[-1], *notes])


def html_table(
    title: str,
    head: Sequence[str],
    body: Iterable[Sequence[str]],
    words: int,
    notes: Sequence[str] = (),
) -> str:
    """A table as notebooks show it; the first `words` columns stand left, numbers right."""

    def row(tag: str, cells: Sequence[str]) -> str:
        return "<tr>" + "".join(
            f'<{tag} style="text-align:{"left" if i < words else "right"}">{escape(cell)}</{tag}>'
            for i, cell in enumerate(cells)
        ) + "</tr>"  # fmt: skip

    return (
        f"<p><b>{escape(title)}</b></p><table><thead>{row('th', head)}</thead><tbody>"
        + "".join(row("td", cells) for cells in body)
        + "</tbody></table>"
        + "".join(f"<p>{escape(note)}</p>" for note in notes)
    )


def type_text(dtype: str, shape: Sequence[int]) -> str:
    """f32[64, 8], as the dumps spell it."""
    letters = dtype.rstrip("0123456789")
    return SHORT.get(letters, letters) + dtype[len(letters) :] + str(list(shape))


def _joined(name: str, rows: Sequence[Layer]) -> Layer:
    def whole(values: Iterable[int | None]) -> int | None:
        known = [value for value in values if value is not None]
        return sum(known) if known else None

    return Layer(
        name,
        (),
        "",
        sum(row.params for row in rows),
        sum(row.param_bytes for row in rows),
        sum(row.flops for row in rows),
        whole(row.bytes_moved for row in rows),
        whole(row.launches for row in rows),
    )


class _Costs:
    """What each layer costs, from lowered ops or launches."""

    def __init__(self, of_node: dict[int, str]) -> None:
        self.of_node = of_node
        self.flops: dict[str, int] = {}
        self.moved: dict[str, int] = {}
        self.launches: dict[str, int] = {}

    def add(self, op: dict[str, Any]) -> None:
        """A launch counts where its first part belongs, its work where each part does."""
        layer = self.of_node.get(first_part(op)["node"], "")
        self.launches[layer] = self.launches.get(layer, 0) + 1
        self._work(op)

    def _work(self, op: dict[str, Any]) -> None:
        if parts := _parts(op):
            for part in parts:
                self._work(part)
            return
        layer = self.of_node.get(op["node"], "")
        self.flops[layer] = self.flops.get(layer, 0) + op["flops"]
        self.moved[layer] = self.moved.get(layer, 0) + op["bytes_moved"]


def _parts(op: dict[str, Any]) -> Sequence[dict[str, Any]]:
    """The members of a group, the steps of a region; empty for an op of one piece."""
    parts: Sequence[dict[str, Any]] = op.get("members") or op.get("body") or ()
    return parts


def summarize(
    record: dict[str, Any],
    ops: Sequence[dict[str, Any]],
    depth: int | None = None,
    compiled: bool = False,
) -> list[Layer]:
    """The layers of a graph's record with the costs of `ops`, its lowered ops or launches.

    Args:
        depth: parts of a name that are told apart: 1 makes "0.attention.qkv" part of "0".
        compiled: whether the ops are launches, which are counted.
    """
    values = record["values"]

    def cut(layer: str) -> str:
        return layer if depth is None else ".".join(layer.split(".")[:depth])

    of_node = {id: cut(layer) for id, layer in layers(record).items()}
    forward = forward_nodes(record)
    names: dict[str, list[str]] = {}  # of the ops, in the order of the layers
    output: dict[str, str] = {}
    for node in record["nodes"]:
        if node["id"] in forward:
            layer = of_node[node["id"]]
            names.setdefault(layer, []).append(node["op"])
            value = values[str(node["outputs"][0])]
            output[layer] = type_text(value["dtype"], value["shape"])
    params: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for value in values.values():
        if value["role"] == "param":
            layer = cut(layer_of(value["name"]))
            count = math.prod(value["shape"])
            params[layer] = params.get(layer, 0) + count
            sizes[layer] = sizes.get(layer, 0) + count * ITEM_BYTES.get(value["dtype"], 4)
    costs = _Costs(of_node)
    for op in ops:
        costs.add(op)
    order = dict.fromkeys([*names, *params, *costs.flops, *costs.launches])
    return [
        Layer(
            layer,
            tuple(dict.fromkeys(names.get(layer, []))),
            output.get(layer, ""),
            params.get(layer, 0),
            sizes.get(layer, 0),
            costs.flops.get(layer, 0),
            costs.moved.get(layer, 0) if compiled else None,
            costs.launches.get(layer, 0) if compiled else None,
        )
        for layer in order
    ]
