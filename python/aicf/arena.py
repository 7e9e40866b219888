"""The memory of temporaries over a step: which value lies where, from launch to launch."""

from __future__ import annotations

from html import escape
from typing import Any, NamedTuple

from .units import bytes_text

ALIGN = 256  # bytes that a place begins at a multiple of
SCRATCH = -1  # stands for a value where a kernel's own scratch lies


class Box(NamedTuple):
    """A value and its bytes: from launch `first` to the one before `end`."""

    value: int
    name: str
    first: int
    end: int
    offset: int
    bytes: int


class Arena:
    """The region of temporaries of a plan's record.

    A value lives from the launch that writes it to the last that reads it. One whose storage
    another takes over in place ends where that one begins.
    """

    def __init__(self, record: dict[str, Any]) -> None:
        self.launches = len(record["ops"])
        self.regions: dict[str, int] = record["regions"]
        self.boxes = _boxes(record)

    @property
    def bytes(self) -> int:
        """The size of the region."""
        return self.regions["temps"]

    @property
    def live(self) -> list[int]:
        """Bytes of all values that live at each launch, each rounded up to its place."""
        change = [0] * (self.launches + 1)
        for box in self.boxes:
            change[box.first] += _padded(box.bytes)
            change[box.end] -= _padded(box.bytes)
        live, now = [], 0
        for step in change[:-1]:
            now += step
            live.append(now)
        return live

    def svg(self, width: int = 960, height: int = 420) -> str:
        """The picture: launches to the right, bytes upwards, a box per value."""
        return _Picture(self, width, height).text()


def _padded(count: int) -> int:
    return -(-count // ALIGN) * ALIGN


def _boxes(record: dict[str, Any]) -> list[Box]:
    places = {int(id): place for id, place in record["values"].items()}
    places = {id: place for id, place in places.items() if place["region"] == "temps"}
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    boxes = []
    for i, op in enumerate(record["ops"]):
        for operand in op["inputs"]:
            last[operand["value"]] = i
        for operand in op["outputs"]:
            first.setdefault(operand["value"], i)
        if op.get("scratch_bytes"):
            name = f"scratch of launch {i}"
            boxes.append(Box(SCRATCH, name, i, i + 1, op["scratch"], op["scratch_bytes"]))
    heirs: dict[int, list[int]] = {}  # the values that lie in one storage, in their order
    for id in sorted(first.keys() & places.keys(), key=lambda id: (first[id], id)):
        heirs.setdefault(places[id]["storage"], []).append(id)
    for line in heirs.values():
        for id, heir in zip(line, [*line[1:], None], strict=True):
            end = last.get(id, first[id]) + 1
            if heir is not None:
                end = min(end, first[heir])
            place = places[id]
            name = place["name"]
            boxes.append(Box(id, name, first[id], end, place["offset"], place["bytes"]))
    return sorted(boxes, key=lambda box: (box.first, box.offset))


# Hues that stay apart for most readers, light enough for dark text.
_FILLS = ("#a9cbe8", "#f6cf9b", "#b5dcb0", "#e8b4b0", "#cdbfe3", "#e6dd9a", "#a5d8d3", "#dcc3b0")
_REGIONS = {
    "params": "#5b8db8",
    "grads": "#d9955b",
    "moments": "#7aa974",
    "state": "#b57fb3",
    "inputs": "#6fb1b7",
    "outputs": "#c0727c",
    "temps": "#a8a8a8",
}
_OTHER = "#d0d0d0"
_RULES = (
    "text{font:11px system-ui,sans-serif;fill:#333}",
    ".in{font-size:10px;fill:#222;pointer-events:none}",
    ".axis{stroke:#999}",
    ".grid{stroke:#eee}",
    ".peak{stroke:#c0392b;stroke-dasharray:5 3}",
    ".peaktext{fill:#c0392b;font-weight:600}",
    ".box{stroke:#fff;stroke-width:.6}",
    ".thin{stroke:none}",
    ".box:hover{stroke:#000;stroke-width:1}",
    ".most{fill:#c0392b;opacity:.12}",
)
_STYLE = "".join(f".aicf-arena {rule}" for rule in _RULES)  # of this picture alone


class _Picture:
    """Lays an arena out as SVG; coordinates are pixels of the view box."""

    LEFT, TOP, BOTTOM, SIDE = 68, 34, 34, 190  # SIDE: the bar of all regions and its words

    def __init__(self, arena: Arena, width: int, height: int) -> None:
        self.arena = arena
        self.width, self.height = width, height
        self.across = width - self.LEFT - self.SIDE
        self.up = height - self.TOP - self.BOTTOM

    def x(self, launch: float) -> float:
        return self.LEFT + self.across * launch / max(self.arena.launches, 1)

    def y(self, offset: float) -> float:
        return self.TOP + self.up * (1 - offset / max(self.arena.bytes, 1))

    def text(self) -> str:
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="aicf-arena" role="img" '
            f'viewBox="0 0 {self.width} {self.height}" style="max-width:{self.width}px">',
            f"<style>{_STYLE}</style>",
            f'<rect width="{self.width}" height="{self.height}" fill="#fff"/>',
            *self.axes(),
            *self.most_live(),
            *(self.box(box) for box in self.arena.boxes),
            *self.peak(),
            *self.side(),
            "</svg>",
        ]
        return "\n".join(parts) + "\n"

    def axes(self) -> list[str]:
        left, right, floor = self.LEFT, self.LEFT + self.across, self.TOP + self.up
        parts = []
        for tick in _ticks(self.arena.bytes, 7, binary=True):
            y = self.y(tick)
            parts.append(f'<path class="grid" d="M{left} {y:.1f}H{right}"/>')
            parts.append(
                f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{bytes_text(tick)}</text>'
            )
        for tick in _ticks(self.arena.launches, 8):
            x = self.x(tick)
            parts.append(f'<path class="axis" d="M{x:.1f} {floor}v4"/>')
            parts.append(f'<text x="{x:.1f}" y="{floor + 16}" text-anchor="middle">{tick}</text>')
        parts.append(f'<path class="axis" fill="none" d="M{left} {self.TOP}V{floor}H{right}"/>')
        parts.append(
            f'<text x="{(left + right) / 2:.0f}" y="{self.height - 4}" '
            'text-anchor="middle">launch</text>'
        )
        parts.append(f'<text x="{left}" y="16">temporaries over the step</text>')
        return parts

    def box(self, box: Box) -> str:
        x, y = self.x(box.first), self.y(box.offset + box.bytes)
        width, height = self.x(box.end) - x, self.y(box.offset) - y
        label = box.name if box.value == SCRATCH else f"%{box.value} {box.name}"
        shown = _printable(label)
        until = (
            f"launch {box.first}"
            if box.end == box.first + 1
            else (f"launches {box.first} to {box.end - 1}")
        )
        title = f"{shown}: {box.bytes} bytes at {box.offset}, {until}"
        fill = "#c9c9c9" if box.value == SCRATCH else _FILLS[box.value % len(_FILLS)]
        kind = "box thin" if height < 3 else "box"
        data = "" if box.value == SCRATCH else f' data-v="{box.value}"'
        parts = (
            f'<rect class="{kind}"{data} x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" '
            f'height="{height:.2f}" fill="{fill}"><title>{escape(title)}</title></rect>'
        )
        room = int((width - 6) / 6)  # letters of the small type
        if height >= 12 and room >= 3:
            parts += (
                f'<text class="in" x="{x + 3:.1f}" y="{y + height / 2 + 3.5:.1f}">'
                f"{escape(shown if len(shown) <= room else shown[: room - 1] + '…')}</text>"
            )
        return parts

    def most_live(self) -> list[str]:
        """The launch at which most bytes live."""
        live = self.arena.live
        if not live or not max(live):
            return []
        at = live.index(max(live))
        width = max(self.x(at + 1) - self.x(at), 1.5)
        return [
            f'<rect class="most" x="{self.x(at):.2f}" y="{self.TOP}" width="{width:.2f}" '
            f'height="{self.up}"><title>most alive: {max(live)} bytes at launch {at}</title></rect>'
        ]

    def peak(self) -> list[str]:
        if not self.arena.bytes:
            return [f'<text x="{self.LEFT + 12}" y="{self.TOP + 30}">no temporaries</text>']
        right = self.LEFT + self.across
        return [
            f'<path class="peak" d="M{self.LEFT} {self.TOP}H{right}"/>',
            f'<text class="peaktext" x="{right}" y="{self.TOP - 6}" text-anchor="end">'
            f"peak of temporaries {bytes_text(self.arena.bytes)}</text>",
        ]

    def side(self) -> list[str]:
        """All regions as one bar: what the whole step holds."""
        regions = {name: size for name, size in self.arena.regions.items() if size}
        total = sum(regions.values())
        x, y = self.LEFT + self.across + 34, float(self.TOP + self.up)
        parts = [f'<text class="peaktext" x="{x}" y="{y + 16:.0f}">all {bytes_text(total)}</text>']
        words = y - 2
        for name, size in regions.items():
            height = self.up * size / total
            fill = _REGIONS.get(name, _OTHER)
            y -= height
            parts.append(
                f'<rect x="{x}" y="{y:.2f}" width="26" height="{height:.2f}" fill="{fill}">'
                f"<title>{escape(name)}: {size} bytes</title></rect>"
            )
            # Words of thin slices move up so that none lies on another.
            words = min(words, y + height / 2 + 4)
            parts.append(
                f'<text x="{x + 32}" y="{words:.1f}">{escape(name)} {bytes_text(size)}</text>'
            )
            words -= 13
        return parts


def _ticks(most: int, count: int, binary: bool = False) -> list[int]:
    """About `count` round numbers from 0 to `most`."""
    step, base = 1, 2 if binary else 10
    factors = (1, 2) if binary else (1, 2, 5)
    while True:
        for factor in factors:
            if step * factor * count >= most:
                return list(range(0, most + 1, step * factor))
        step *= base if not binary else 4


def _printable(text: str) -> str:
    """What XML can hold: names may have any letter."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)
