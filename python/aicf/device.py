"""The devices of this machine, and which of them "auto" means."""

from __future__ import annotations

import functools
import os
import re
import reprlib
import warnings
from typing import NamedTuple

from . import _core
from .arguments import is_it


class DeviceInfo(NamedTuple):
    """One device and the memory that aicf holds there; sizes in bytes."""

    device: str  # what compile(device=) takes
    name: str
    arch: str  # "avx2", "sm_90a": what its kernels are built for
    total_bytes: int
    free_bytes: int
    used_bytes: int  # by the Steps alive
    reserved_bytes: int  # by the memory pool, of which the Steps use a part
    peak_bytes: int  # the most that was ever used


def devices() -> list[DeviceInfo]:
    """Every device that `compile` can use here, the CPU first.

    >>> [info.device for info in aicf.devices()][0]
    'cpu'
    """
    page = os.sysconf("SC_PAGE_SIZE")
    total = os.sysconf("SC_PHYS_PAGES") * page
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * page
    except (OSError, ValueError):  # macOS has no such number
        free = 0
    used, peak = _core.cpu_memory()
    found = [DeviceInfo("cpu", "cpu", _core.cpu_isa(), total, free, used, used, peak)]
    if hasattr(_core, "cuda_info"):
        for gpu in _core.cuda_info()["devices"]:
            found.append(DeviceInfo(*(gpu[field] for field in DeviceInfo._fields)))
    return found


def resolve_device(device: str) -> str:
    """The device "auto" means here; any other name unchanged."""
    if not isinstance(device, str) or not device.isascii():
        raise _core.GraphError(f'device: got {device!r}; need "auto", "cpu" or "cuda:<index>"')
    if device != "auto":
        if not re.fullmatch(r"cpu|cuda(:[0-9]{1,3})?", device):
            near = is_it(device.lower(), ("auto", "cpu", "cuda"))
            raise _core.GraphError(
                f'device: got "{device}"{near}; need "auto", "cpu" or "cuda:<index>"'
            )
        return device
    wanted = os.environ.get("AICF_DEVICE") or "auto"
    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]{1,3})?", wanted):
        raise _core.GraphError(
            f"device: AICF_DEVICE is {reprlib.repr(wanted)}; need one of auto, cpu, cuda, "
            "cuda:<index>"
        )
    return _best_device() if wanted == "auto" else wanted


@functools.cache
def _best_device() -> str:
    """cuda:0 where the driver and NVRTC are usable, else cpu."""
    problem = _core.cuda_problem() if hasattr(_core, "cuda_problem") else "no CUDA backend"
    if "NVRTC" in problem:
        warnings.warn(f"a GPU is here but {problem}; using the cpu", stacklevel=3)
    return "cpu" if problem else "cuda:0"
