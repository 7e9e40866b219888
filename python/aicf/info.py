"""What aicf finds on this machine, where, and what brings that which is missing."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from . import _core
from .device import devices, resolve_device
from .units import bytes_text, printable

VARIABLES = ("AICF_DEVICE", "AICF_NUM_THREADS", "AICF_CPU_ISA", "AICF_CACHE_DIR", "CUDA_HOME")
_NVIDIA, _DISPLAY = "0x10de", "0x03"  # of PCI: the vendor, and the class of display controllers


class Fact(NamedTuple):
    """One thing that was looked for."""

    name: str
    found: str  # "" for nothing
    where: str = ""
    missing: str = ""  # what would be needed
    command: str = ""  # and the command that brings it


def facts(version: str) -> list[Fact]:
    """Everything `aicf info` says."""
    return [
        Fact("aicf", version, str(Path(__file__).parent)),
        Fact("python", f"{platform.python_version()} on {platform.platform()}", sys.executable),
        Fact("numpy", np.__version__, str(Path(np.__file__).parent)),
        *_told("cpu", _cpu),
        *_told("memory", _memory),
        *_told("cuda", _cuda),
        *_told('device="auto"', _auto),
        *(Fact(name, os.environ[name], "environment") for name in VARIABLES if name in os.environ),
    ]


def text_of(found: list[Fact]) -> str:
    """A line each; what is missing stands below it."""
    width = max(len(fact.name) for fact in found)
    lines = []
    for fact in found:
        where = f"  ({fact.where})" if fact.where else ""
        lines.append(f"{fact.name:{width}}  {fact.found or 'none'}{where}")
        if fact.missing:
            lines.append(f"{'':{width}}  missing: {fact.missing}")
        if fact.command:
            lines.append(f"{'':{width}}  install: {fact.command}")
    return "\n".join(map(printable, lines))


def _told(name: str, group: Callable[[], Iterator[Fact]]) -> Iterator[Fact]:
    """The facts of a group, and the error that ended it: the other groups are told all the same."""
    try:
        yield from group()
    except _core.Error as error:
        yield Fact(name, f"not known: {' '.join(str(error).split())}")


def _cpu() -> Iterator[Fact]:
    if hasattr(os, "sched_getaffinity"):  # those this process may use
        processors = len(os.sched_getaffinity(0))
    else:
        processors = os.cpu_count() or 1
    kernels = f"kernels for {_core.cpu_isa()}, {_core.num_threads()} threads"
    yield Fact("cpu", f"{kernels} on {processors} processors")


def _memory() -> Iterator[Fact]:
    cpu = devices()[0]
    free = f", {bytes_text(cpu.free_bytes)} free" if cpu.free_bytes else ""
    yield Fact("memory", bytes_text(cpu.total_bytes) + free)


def _auto() -> Iterator[Fact]:
    yield Fact('device="auto"', f"means {resolve_device('auto')}")


def _cuda() -> Iterator[Fact]:
    if not hasattr(_core, "cuda_info"):
        needs = "this build has no CUDA backend; build the source on Linux with CUDA's header"
        command = "pip install --force-reinstall --no-cache-dir ."
        yield Fact("cuda", "", missing=needs, command=command)
        return
    found = _core.cuda_info()
    yield _driver(found)
    yield _nvrtc(found)
    yield _cupti(found)
    for gpu in found["devices"]:
        yield Fact(
            gpu["device"],
            f"{gpu['name']}, {gpu['arch']}, {gpu['multiprocessors']} multiprocessors, "
            f"{bytes_text(gpu['free_bytes'])} of {bytes_text(gpu['total_bytes'])} free",
        )
    if found["driver"] and found["nvrtc"] and found["problem"]:
        yield Fact("cuda", "", missing=found["problem"])
    size = f"{found['cache_entries']} kernels, {bytes_text(found['cache_bytes'])}"
    yield Fact("cache", size, found["cache"])


def _driver(found: dict[str, Any]) -> Fact:
    if found["driver"]:
        return Fact("driver", f"for CUDA {found['driver']}", _mapped("libcuda.so"))
    cards = nvidia_cards()
    if not cards:
        return Fact("driver", "", "no NVIDIA GPU on the PCI bus, none needed")
    return Fact("driver", "", f"NVIDIA GPU at {', '.join(cards)}", found["problem"],
                "sudo apt-get install nvidia-driver (Debian, Ubuntu), then restart; in a "
                "container: docker run --gpus all")  # fmt: skip


def _nvrtc(found: dict[str, Any]) -> Fact:
    if found["nvrtc"]:
        version, _, path = found["nvrtc"].partition(" at ")
        return Fact("nvrtc", version, path)
    extra = "cuda12" if found["driver"].startswith("12") else "cuda13"
    return Fact("nvrtc", "", "", "the compiler of GPU kernels; only a GPU needs it",
                f"pip install 'aicf[{extra}]'")  # fmt: skip


def _cupti(found: dict[str, Any]) -> Fact:
    if found["cupti"]:
        return Fact("cupti", found["cupti"].rpartition(".so.")[2], found["cupti"])
    if not found["driver"]:
        return Fact("cupti", "", "none needed")
    major, _, minor = found["driver"].partition(".")
    name = "nvidia-cuda-cupti-cu12" if major == "12" else "nvidia-cuda-cupti"
    return Fact("cupti", "", "", "profiles time replays by it, without it by events",
                f"pip install '{name}<{major}.{int(minor) + 1}'")  # fmt: skip


def nvidia_cards(bus: Path = Path("/sys/bus/pci/devices")) -> list[str]:
    """The PCI addresses of NVIDIA's display controllers, with or without a driver."""
    found = []
    for card in sorted(bus.glob("*")):
        try:
            vendor = (card / "vendor").read_text().strip()
            kind = (card / "class").read_text().strip()
        except OSError:
            continue
        if vendor == _NVIDIA and kind.startswith(_DISPLAY):
            found.append(card.name)
    return found


def _mapped(name: str) -> str:
    """The file of a library that this process has loaded."""
    try:
        for line in Path("/proc/self/maps").read_text().splitlines():
            if f"/{name}" in line:
                return line[line.index("/") :]
    except OSError:
        pass
    return ""
