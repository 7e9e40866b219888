"""A bar for work that takes long, on a terminal alone."""

from __future__ import annotations

import os
import sys
import threading
import time
from types import TracebackType
from typing import TextIO

from .units import printable

_WIDTH, _BLOCK = 24, 6  # letters of the bar, and of what moves in it
_CLEAR = "\r\x1b[K"


class Progress:
    """While it lives, says that something is at work and for how long; then wipes that away.

    Args:
        doing: what it says: "compiling gpt2".
        after: seconds that pass before it says anything.
        stream: where to; nothing is written to what is no terminal.
    """

    def __init__(self, doing: str, after: float = 0.5, stream: TextIO | None = None) -> None:
        self._doing = printable(doing)
        self._after = after
        self._stream = sys.stderr if stream is None else stream
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Progress:
        stream = self._stream
        if stream is not None and stream.isatty():  # None: a process without stderr
            self._thread = threading.Thread(target=self._draw, args=(stream,), daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def _draw(self, stream: TextIO) -> None:
        start, drawn = time.monotonic(), 0
        while not self._done.wait(0.1 if drawn else self._after):
            at = drawn % (2 * (_WIDTH - _BLOCK))
            at = min(at, 2 * (_WIDTH - _BLOCK) - at)  # there and back
            bar = ("=" * _BLOCK).rjust(at + _BLOCK).ljust(_WIDTH)
            end = f" [{bar}] {time.monotonic() - start:.1f} s"
            columns = _columns(stream)
            line = self._doing[: max(0, columns - len(end))] + end
            stream.write(_CLEAR + line[:columns])
            stream.flush()
            drawn += 1
        if drawn:
            stream.write(_CLEAR)
            stream.flush()


def _columns(stream: TextIO) -> int:
    """Letters that a line takes without a wrap; what has wrapped would not be wiped."""
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except OSError:
        columns = 0
    return (columns or 80) - 1
