"""Tensors on a GPU whose pages are all the same piece of its memory, which the L2 cache holds.

A kernel that is given them takes what its instructions take, and the way to the L2 cache: the
memory behind that has nothing to do. What it computes is of no use, as results lie on each other.
"""

import ctypes
import math

PAGE = 2 << 20  # bytes, the granularity of mappings


class Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class Allocation(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", Location),
        ("metadata", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", Location), ("flags", ctypes.c_int))


PINNED, ON_DEVICE, READ_AND_WRITE = 1, 1, 3


class Alias:
    """`size` bytes of addresses, a multiple of PAGE, for the life of the process."""

    def __init__(self, size, device=0):
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.size = size
        address, handle = ctypes.c_uint64(), ctypes.c_uint64()
        place = Location(ON_DEVICE, device)
        self.call("cuMemAddressReserve", ctypes.byref(address), size, 0, 0, 0)
        about = Allocation(PINNED, 0, place)
        self.call("cuMemCreate", ctypes.byref(handle), PAGE, ctypes.byref(about), 0)
        for offset in range(0, size, PAGE):
            self.call("cuMemMap", address.value + offset, PAGE, 0, handle.value, 0)
        access = Access(place, READ_AND_WRITE)
        self.call("cuMemSetAccess", address.value, size, ctypes.byref(access), 1)
        self.address = address.value

    def call(self, function, *arguments):
        plain = [ctypes.c_uint64(a) if isinstance(a, int) else a for a in arguments]
        if error := getattr(self.driver, function)(*plain):
            raise SystemExit(f"{function}: error {error}")

    @property
    def __cuda_array_interface__(self):
        shape = (self.size // 2,)
        return {"shape": shape, "typestr": "<i2", "data": (self.address, False), "version": 3}


HELD = {}


def aliased(name, shape, dtype, values=None):
    """Such a tensor, whose pages hold the first of `values`; the same memory for the same name."""
    import torch

    dtype = getattr(torch, dtype)
    count = math.prod(shape)
    size = -(-count * dtype.itemsize // PAGE) * PAGE
    alias = HELD.get((name, size)) or HELD.setdefault((name, size), Alias(size))
    tensor = torch.as_tensor(alias, device="cuda").view(dtype)
    if values is not None:
        page = PAGE // dtype.itemsize
        tensor[:page] = values.flatten()[:page]
    return tensor[:count].reshape(shape)
