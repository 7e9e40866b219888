"""What a program recorded over its steps, as pictures: losses as curves, statistics as a table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np

from . import _core
from .statistics import Statistics

_WIDTH, _HEIGHT = 440, 170  # of a curve, its axes included, in pixels of the view box
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 12, 24, 22
_SMALL_WIDTH, _SMALL_HEIGHT = 160, 26  # of a curve in a table
_DECADES = 2.0  # from which range on a curve of positive numbers has a logarithmic axis


class _Axis(NamedTuple):
    """Numbers to pixels, upwards."""

    low: float
    high: float
    logarithmic: bool
    top: float
    height: float

    def at(self, number: float) -> float:
        low, high = self._on(self.low) / 2, self._on(self.high) / 2  # whose difference is in range
        share = (self._on(number) / 2 - low) / (high - low) if high > low else 0.5
        return self.top + self.height * (1 - share)

    def _on(self, number: float) -> float:
        return math.log10(number) if self.logarithmic else number


def curves(history: Mapping[str, Any]) -> str:
    """One picture a name.

    Args:
        history: a number a step, by name. What is no finite number leaves a gap.

    Raises: GraphError where that is no mapping of names; DTypeError where there are no numbers,
        ShapeError where they are not one a step.
    """
    return "".join(_picture(name, numbers) for name, numbers in _taken(history).items())


def _taken(history: Any) -> dict[str, np.ndarray]:
    if not isinstance(history, Mapping):
        raise _core.GraphError(
            f"to_html: history is {type(history).__name__}; need a mapping of name to numbers"
        )
    taken = {}
    for name, numbers in history.items():
        if not isinstance(name, str):
            raise _core.GraphError(f"to_html: history has {name!r}; need names")
        try:
            array = np.asarray([float(x) for x in numbers])
        except (TypeError, ValueError, OverflowError):
            raise _core.DTypeError(
                f'to_html: history "{name}" is {type(numbers).__name__}; need a number a step'
            ) from None
        if not array.size:
            raise _core.ShapeError(f'to_html: history "{name}" is empty; need a number a step')
        taken[name] = array
    return taken


def _picture(name: str, numbers: np.ndarray) -> str:
    finite = numbers[np.isfinite(numbers)]
    axis = _axis(finite, _TOP, _HEIGHT - _TOP - _BOTTOM)
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    last = f"{numbers[-1]:.6g} after {len(numbers)} steps"
    parts = [
        f'<text class="name" x="{_LEFT}" y="15">{escape(name)}</text>',
        f'<text class="end" x="{right}" y="15">{last}</text>',
        f'<path class="axis" d="M{_LEFT} {_TOP}V{bottom}H{right}"/>',
    ]
    for number in (axis.low, axis.high) if finite.size else ():
        y = axis.at(number)
        parts.append(f'<text class="end" x="{_LEFT - 6}" y="{y + 4:.1f}">{number:.4g}</text>')
        parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{right}"/>')
    parts.append(f'<text x="{_LEFT}" y="{_HEIGHT - 6}">0</text>')
    parts.append(f'<text class="end" x="{right}" y="{_HEIGHT - 6}">{len(numbers) - 1}</text>')
    if axis.logarithmic:
        middle = (_LEFT + right) / 2
        parts.append(f'<text class="mid" x="{middle}" y="{_HEIGHT - 6}">logarithmic</text>')
    line = _line(numbers, axis, _LEFT, right - _LEFT)
    return (
        f'<svg class="curve" data-name="{escape(name)}" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'role="img" aria-label="{escape(name)}">'
        f'{"".join(parts)}<path class="line" d="{line}"/></svg>'
    )


def _axis(finite: np.ndarray, top: float, height: float) -> _Axis:
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    logarithmic = low > 0 and math.log10(high) - math.log10(low) >= _DECADES
    return _Axis(low, high, logarithmic, top, height)


def _line(numbers: np.ndarray, axis: _Axis, left: float, width: float) -> str:
    """A path; of steps that share a pixel their least and largest, so that no peak is lost."""
    columns = int(2 * width)
    place = np.arange(len(numbers)) * (width / max(len(numbers) - 1, 1))
    if len(numbers) > 2 * columns:
        kept = {0, len(numbers) - 1}
        for part in np.array_split(np.arange(len(numbers)), columns):
            inside = numbers[part]
            if np.isfinite(inside).all():
                kept |= {int(part[inside.argmin()]), int(part[inside.argmax()])}
            else:
                kept |= set(map(int, part))
        steps: Sequence[int] = sorted(kept)
    else:
        steps = range(len(numbers))
    path, drawn = [], False
    for step in steps:
        number = float(numbers[step])
        if math.isfinite(number):
            letter = "L" if drawn else "M"
            path.append(f"{letter}{left + place[step]:.1f} {axis.at(number):.1f}")
        drawn = math.isfinite(number)
    if len(path) == 1:  # a path of one point shows nothing
        path.append("h2")
    return "".join(path)


# ---- statistics


def statistics_table(records: Any) -> str:
    """The last record, and how each mean went, between the least and the largest number.

    Args:
        records: what `Step.statistics` gave, once or several times.

    Raises: GraphError where they are something else.
    """
    records = [records] if isinstance(records, Mapping) else records
    names = dict.fromkeys(name for record in _records(records) for name in record)
    head = ["value", "min", "mean", "max", "zeros", "mean between min and max"]
    rows = []
    for name in names:
        found = [record[name] for record in records if name in record]
        last = found[-1]
        cells = [f"{last.min:.4g}", f"{last.mean:.4g}", f"{last.max:.4g}", f"{last.zeros:.1%}"]
        rows.append(
            f'<tr><th scope="row">{escape(name)}</th>'
            + "".join(f"<td>{cell}</td>" for cell in cells)
            + f"<td>{_small(found) if len(found) > 1 else ''}</td></tr>"
        )
    return (
        '<table class="statistics"><thead><tr>'
        + "".join(f"<th>{text}</th>" for text in head)
        + f"</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )


def _records(records: Any) -> Iterator[Mapping[str, Statistics]]:
    need = "need what Step.statistics gives, or a list of these"
    if isinstance(records, (str, bytes)) or not isinstance(records, Sequence) or not records:
        raise _core.GraphError(f"to_html: statistics is {type(records).__name__}; {need}")
    for record in records:
        fits = isinstance(record, Mapping) and all(
            isinstance(name, str) and isinstance(found, Statistics)
            for name, found in record.items()
        )
        if not fits:
            raise _core.GraphError(f"to_html: statistics has {type(record).__name__}; {need}")
        yield record


def _small(found: Sequence[Statistics]) -> str:
    low, mean, high = (np.array([getattr(s, key) for s in found]) for key in ("min", "mean", "max"))
    every = np.concatenate([low, mean, high])
    finite = every[np.isfinite(every)]
    least, most = (finite.min(), finite.max()) if finite.size else (0.0, 1.0)
    axis = _Axis(float(least), float(most), False, 2, _SMALL_HEIGHT - 4)
    band = ""
    if finite.size == every.size:
        there, back = (_line(x, axis, 0, _SMALL_WIDTH) for x in (high, low))
        points = [*back.replace("M", "L").split("L")[1:]]
        band = f'<path class="band" d="{there}L{"L".join(reversed(points))}Z"/>'
    return (
        f'<svg class="small" viewBox="0 0 {_SMALL_WIDTH} {_SMALL_HEIGHT}">{band}'
        f'<path class="line" d="{_line(mean, axis, 0, _SMALL_WIDTH)}"/></svg>'
    )
