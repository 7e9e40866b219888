"""JSON that nobody vouches for, taken apart record by record: memory and time in step with its
size, and nothing that other readers would take otherwise or not at all."""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from ._core import FormatError
from .files import shown

MOST_RECORD = 1 << 20  # bytes of a key or a record, hexadecimal content apart
_MOST_DEPTH = 100
_PIECE = 1 << 20

_SPACE = re.compile(rb"[ \t\n\r]*")
_SCALAR = re.compile(rb"[-+.0-9A-Za-z]+")
# Repeats of groups are bounded: each costs the matcher memory. A string with an escape is left to
# _STRING, which alone knows which are right.
_PLAIN = re.compile(rb'(?:[^"\[\]{}]+|"[^"\\]*"|\[[^"\[\]{}]*\]|\{\}){0,64}')
_STRING = re.compile(
    rb'(?:[^"\\\x00-\x1f]+|\\["\\/bfnrt]|\\u(?:[0-9abcefABCEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}'
    rb"|[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})){0,64}"
)
_HEX = re.compile(rb'"bytes"[ \t\n\r]*:[ \t\n\r]*"([0-9a-fA-F]{4096,})"')


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore
        raise ValueError(f"the key {shown(twice)} stands twice in one object")
    return result


def _int(digits: str) -> int:
    if len(digits) > 20 or digits == "-0":
        raise ValueError(f"the number {digits[:20]}; need an integer of 64 bits")
    return int(digits)


def _float(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"the number {digits[:20]} is out of range")
    return number


def _constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _decoder(constant: Callable[[str], Any] = _constant) -> json.JSONDecoder:
    return json.JSONDecoder(
        object_pairs_hook=_unique, parse_int=_int, parse_float=_float, parse_constant=constant
    )


_DECODER = _decoder()


class JsonText:
    """A place in a JSON text. `members` and `items` stop at each value, which the caller then
    takes by `value`, `skip`, or by `members` and `items` again."""

    def __init__(self, data: bytes | bytearray, where: str) -> None:
        self._data, self._where, self.at = data, where, 0
        decoder, view = codecs.getincrementaldecoder("utf-8")(), memoryview(data)
        try:
            for at in range(0, len(data), _PIECE):
                decoder.decode(view[at : at + _PIECE])
        except UnicodeDecodeError as error:
            self._refuse(f"no UTF-8 ({error.reason})")

    def members(self) -> Iterator[str]:
        """The keys of an object, each with this place at its value."""
        yield from self._entries(b"{", b"}")

    def items(self) -> Iterator[str]:
        """One empty text for each item of an array, with this place at the item."""
        yield from self._entries(b"[", b"]")

    def _entries(self, first: bytes, last: bytes) -> Iterator[str]:
        if self._next() != first:
            self._refuse(f"need {'an object' if first == b'{' else 'an array'}")
        self.at += 1
        if self._next() == last:
            self.at += 1
            return
        while True:
            key = ""
            if first == b"{":
                self._next()
                key = self.text()
                if self._next() != b":":
                    self._refuse("need a colon")
                self.at += 1
                self._next()
            yield key
            ends = self._next()
            if ends not in (b",", last):
                self._refuse(f"need a comma or {last.decode()}")
            self.at += 1
            if ends == last:
                return
            self._next()

    def text(self) -> str:
        """The string that stands here."""
        start = self.at
        self.skip_text()
        return self._decode(start, self.at)

    def skip_text(self) -> None:
        """Passes over the string that stands here, however long it is."""
        if self._data[self.at : self.at + 1] != b'"':
            self._refuse("need a string")
        self.at = self._string_end(self.at + 1)

    def value(self) -> Any:
        """The value that stands here as Python's objects; content in hexadecimal, which an object
        holds as "bytes", comes as bytes where it is long."""
        start = self.at
        self.skip()
        found = None
        if self.at - start > MOST_RECORD // 16:
            found = _HEX.search(self._data, start, self.at)
        if found is None:
            return self._decode(start, self.at)
        first, last = found.span(1)
        self._check_size(first - start + self.at - last)
        with memoryview(self._data) as view:
            content = bytes.fromhex(str(view[first:last], "ascii"))
        taken: list[str] = []

        def constant(name: str) -> bytes:
            if taken or name != "NaN":
                _constant(name)
            taken.append(name)
            return content

        # What JSON lacks stands for the content and its quotes: no other value is taken for it.
        text = self._data[start : first - 1] + b"NaN" + self._data[last + 1 : self.at]
        value = self._parse(text, _decoder(constant))
        holder = value.get("init") if isinstance(value, dict) else None
        if not isinstance(holder, dict) or holder.get("bytes") is not content:
            self._refuse('long content in hexadecimal that is not the "bytes" of an "init"')
        return value

    def skip(self) -> None:
        """Passes over a value; what it holds is looked at only by whoever takes it."""
        data = self._data
        here = data[self.at : self.at + 1]
        if here == b'"':
            return self.skip_text()
        if here not in (b"[", b"{"):
            found = _SCALAR.match(data, self.at)
            if found is None:
                self._refuse("need a value")
            self.at = found.end()
            return None
        depth, at = 1, self.at + 1
        while depth:
            at = _PLAIN.match(data, at).end()  # type: ignore[union-attr]
            byte = data[at] if at < len(data) else 0
            if byte == 0x22:
                at = self._string_end(at + 1)
            elif byte in (0x5B, 0x7B):
                depth += 1
                at += 1
                if depth > _MOST_DEPTH:
                    self._refuse(f"nested deeper than {_MOST_DEPTH}")
            elif byte in (0x5D, 0x7D):
                depth -= 1
                at += 1
            elif at >= len(data):
                self._refuse("it ends within a value")
        self.at = at
        return None

    def end(self) -> None:
        """FormatError unless nothing follows."""
        if self._next():
            self._refuse("something follows")

    def _next(self) -> bytes | bytearray:
        """The next byte that is no space; none at the end."""
        self.at = _SPACE.match(self._data, self.at).end()  # type: ignore[union-attr]
        return self._data[self.at : self.at + 1]

    def _string_end(self, at: int) -> int:
        while True:
            end = _STRING.match(self._data, at).end()  # type: ignore[union-attr]
            if end == at:
                break
            at = end
        if self._data[at : at + 1] != b'"':
            self._refuse("a string with a wrong escape, a control character or without an end")
        return at + 1

    def _decode(self, start: int, end: int) -> Any:
        self._check_size(end - start)
        return self._parse(self._data[start:end], _DECODER)

    def _parse(self, text: bytes | bytearray, decoder: json.JSONDecoder) -> Any:
        try:
            return decoder.decode(text.decode())
        except ValueError as error:  # those of JSON and of UTF-8 are among them
            self._refuse(str(error)[:200])

    def _check_size(self, count: int) -> None:
        if count > MOST_RECORD:
            self._refuse(f"a record of {count} bytes; need at most {MOST_RECORD}")

    def _refuse(self, what: str) -> NoReturn:
        raise FormatError(f"{self._where}: no JSON text: {what}, near byte {self.at}")
