"""How a notebook shows what a step gives: names, types and what is in them."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

import numpy as np

from . import _core
from .summary import html_table, type_text

_HEAD = ("output", "type", "device", "content")
_FEW = 8  # elements that are shown whole


def _row(name: str, array: _core.Array) -> tuple[str, str, str, str]:
    try:
        content = _content(array.numpy())
    except _core.StaleOutput:
        content = "a later step has run"
    return name, type_text(array.dtype, array.shape), array.device, content


def _content(values: np.ndarray) -> str:
    if values.size <= _FEW:
        return np.array2string(values, precision=6, separator=", ")
    if values.dtype == bool:
        return f"{np.count_nonzero(values)} of {values.size} are true"
    wide = values.astype(np.float64)
    with np.errstate(all="ignore"):
        text = f"{wide.min():.6g} to {wide.max():.6g}, mean {wide.mean():.6g}"
    strange = wide.size - np.count_nonzero(np.isfinite(wide))
    return text + (f"; {strange} not finite" if strange else "")


def _array_html(array: _core.Array) -> str:
    _, kind, device, content = _row("", array)
    return f"<code>{escape(kind)}</code> on {escape(device)}: <code>{escape(content)}</code>"


def _outputs_html(outputs: _core.Outputs) -> str:
    rows = [_row(name, outputs[name]) for name in outputs]
    return html_table("outputs", _HEAD, rows, len(_HEAD))


def leaves_html(leaves: Mapping[str, _core.Array]) -> str:
    """The params or states of a step as a table."""
    rows = [_row(name, array) for name, array in leaves.items()]
    return html_table("values", ("name", *_HEAD[1:]), rows, len(_HEAD))


def install() -> None:
    """Gives the classes of the core their `_repr_html_`."""
    for kind, html in ((_core.Array, _array_html), (_core.Outputs, _outputs_html)):
        kind._repr_html_ = html  # type: ignore[union-attr]
