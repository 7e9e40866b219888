"""Sizes, counts and names as people read them."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text with control characters, which a terminal would obey, spelled out as in Python."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


def bytes_text(count: float) -> str:
    """1536 as "1.5 KiB"; exact below 1 KiB."""
    return _scaled(count, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))


def count_text(count: float) -> str:
    """1500000 as "1.5 M"; exact below 10,000."""
    return f"{count:,.0f}" if count < 10_000 else _scaled(count, 1000, ("", "k", "M", "G", "T"))


def time_text(seconds: float) -> str:
    """0.0015 as "1.5 ms"."""
    return (
        _scaled(seconds * 1e9, 1000, ("ns", "µs", "ms", "s"))
        if seconds < 1000
        else (f"{seconds:,.0f} s")
    )


def _scaled(number: float, step: int, units: tuple[str, ...]) -> str:
    power = 0
    while number >= step and power < len(units) - 1:
        number, power = number / step, power + 1
    digits = (
        0 if power == 0 and number == int(number) or number >= 100 else 1 if number >= 10 else 2
    )
    text = f"{number:.{digits}f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return f"{text} {units[power]}".rstrip()
