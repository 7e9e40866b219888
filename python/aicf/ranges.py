"""Ranges of NVTX: what Nsight shows of a program on the tracks of its threads."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from . import _core
from .step import Step

_LIBRARY = "libnvtx3interop.so.1"  # NVTX 3 as functions; its headers are not needed


class Ranges:
    """The functions of NVTX. Without a tool that listens they return at once.

    Raises: Unsupported where the library is not found.
    """

    def __init__(self) -> None:
        if not hasattr(_core, "Nvtx"):
            raise _core.Unsupported("profiler: nvtx=True needs a build of aicf with CUDA")
        for path in _places():
            try:
                self._nvtx = _core.Nvtx(path)
            except _core.Unsupported:
                continue
            return
        raise _core.Unsupported(
            f"profiler: nvtx=True needs {_LIBRARY}, which was not found beside this package, under "
            "CUDA_HOME or by its name; pip install nvidia-nvtx"
        )

    @contextmanager
    def around(self, name: str) -> Iterator[None]:
        """A range of this thread."""
        self._nvtx.push(name)
        try:
            yield
        finally:
            self._nvtx.pop()

    def methods(self) -> dict[str, Callable[..., Any]]:
        """Those of Step, each in a range that has the name of its graph."""
        compile_step: Callable[..., None] = vars(Step)["__init__"]

        def __init__(step: Step, graph: Any, *rest: Any, **options: Any) -> None:
            with self.around(f"compile {getattr(graph, 'name', '')}"):
                compile_step(step, graph, *rest, **options)

        def __call__(step: Step, /, *rest: Any, **inputs: Any) -> _core.Outputs:
            with self.around(_name(step)):
                return _core.Step.__call__(step, *rest, **inputs)

        def replay(step: Step, n: Any = 1, stream: Any = None) -> _core.Outputs:
            with self.around(f"{_name(step)} x{n}"):
                return _core.Step.replay(step, n, stream)

        return {"__init__": __init__, "__call__": __call__, "replay": replay}


def _name(step: Step) -> str:
    graph = getattr(step, "_graph", None)  # one from a file has none
    return str(graph.name) if graph is not None else "step"


def _places() -> Iterator[str]:
    """Where it may lie: in wheels, in a toolkit, where the system looks."""
    for folder in sys.path:
        for inside in ("cu13", "nvtx"):
            yield str(Path(folder) / "nvidia" / inside / "lib" / _LIBRARY)
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    for home in filter(None, homes):
        for inside in ("lib64", "lib"):
            yield str(Path(home) / inside / _LIBRARY)
    yield _LIBRARY
