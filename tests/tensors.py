"""Tensors made by hand: any strides and offset, on any device, through DLPack; guards around them.

`Foreign` is a producer of its own, so that a test can hand over whatever the protocol can say;
`CapsuleTensor` hands over what another producer made.
"""

import ctypes
import threading

import numpy as np
from compare import numpy_dtype

GUARD = 0xA5  # what every byte holds that is not an element's

CODES = {  # DLPack's type code and bits
    "float32": (2, 32),
    "float64": (2, 64),
    "float16": (2, 16),
    "bfloat16": (4, 16),
    "int32": (0, 32),
    "int64": (0, 64),
    "uint8": (1, 8),
    "bool": (6, 8),
    "int8": (0, 8),
    "int16": (0, 16),
}
READ_ONLY = 1


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Unversioned(ctypes.Structure):
    _fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    ]


new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

alive = {}  # address of each managed tensor that a consumer holds -> what it needs
deleted = [0]


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def release(address):
    alive.pop(address)
    deleted[0] += 1


class CapsuleTensor:
    """Another framework's tensor, by its capsule, which is taken once."""

    def __init__(self, capsule, device="cuda"):
        self.capsule, self.device = capsule, (1, 0) if device == "cpu" else (2, 0)

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **options):
        return self.capsule


class Foreign:
    """A tensor over memory that somebody else keeps.

    Args:
        address: of the memory; None is a NULL pointer.
        strides: in elements; None hands over a NULL pointer, which means C order.
        byte_offset: from the address to the first element.
        versioned: whether a DLPack 1.0 capsule is given out.
    """

    def __init__(
        self,
        address,
        dtype,
        shape,
        strides,
        byte_offset=0,
        versioned=True,
        read_only=False,
        device=(1, 0),
        keep=None,
    ):
        self.address, self.dtype, self.shape, self.strides = address, dtype, shape, strides
        self.byte_offset, self.versioned, self.read_only = byte_offset, versioned, read_only
        self.device, self.keep = device, keep

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        managed = Versioned() if self.versioned else Unversioned()
        rank = len(self.shape)
        shape = (ctypes.c_int64 * max(rank, 1))(*self.shape)
        tensor = managed.tensor
        tensor.data, tensor.byte_offset, tensor.ndim = self.address, self.byte_offset, rank
        tensor.device_type, tensor.device_id = self.device
        tensor.code, tensor.bits = CODES[self.dtype]
        tensor.lanes = 1
        tensor.shape = shape
        if self.strides is not None:
            tensor.strides = (ctypes.c_int64 * max(rank, 1))(*self.strides)
        managed.deleter = ctypes.cast(release, ctypes.c_void_p)
        if self.versioned:
            managed.major, managed.minor = 1, 1
            managed.flags = READ_ONLY if self.read_only else 0
        address = ctypes.addressof(managed)
        alive[address] = (managed, shape, self)
        name = b"dltensor_versioned" if self.versioned else b"dltensor"
        return new_capsule(address, name, None)


class Cuda:
    """Memory of the first GPU, through the driver; its primary context is the one aicf uses."""

    here = threading.local()  # a thread's context is its own

    @classmethod
    def call(cls, name, *args):
        if not hasattr(cls.here, "driver"):
            cls.here.driver = ctypes.CDLL("libcuda.so.1")
            context = ctypes.c_void_p()
            cls.call("cuInit", 0)
            cls.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
            cls.call("cuCtxSetCurrent", context)
        result = getattr(cls.here.driver, name)(*args)
        assert result == 0, f"{name} failed with {result}"

    def __init__(self, data):
        self.size = data.nbytes
        pointer = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(max(self.size, 1)))
        self.address = pointer.value
        self.call("cuMemcpyHtoD_v2", pointer, data.ctypes.data_as(ctypes.c_void_p), self.size)

    def read(self):
        data = np.empty(self.size, np.uint8)
        source = ctypes.c_uint64(self.address)
        self.call("cuMemcpyDtoH_v2", data.ctypes.data_as(ctypes.c_void_p), source, self.size)
        return data

    def __del__(self):
        self.call("cuMemFree_v2", ctypes.c_uint64(self.address))


class Layout:
    """Where the elements of a shape lie: strides and offset in elements, and how many there are."""

    def __init__(self, shape, strides, offset=0, size=None):
        self.shape, self.strides, self.offset = tuple(shape), tuple(strides), offset
        ends = [(n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)]
        reach = sum(end for end in ends if end > 0) + 1 if 0 not in self.shape else 0
        self.size = size if size is not None else offset + reach

    @staticmethod
    def c_order(shape):
        strides = [int(np.prod(shape[i + 1 :])) for i in range(len(shape))]
        return Layout(shape, strides)

    def __repr__(self):
        return f"{self.shape} strides {self.strides} offset {self.offset} of {self.size}"


class Tensor:
    """Elements in a given layout between guards, on a device.

    Args:
        values: the elements, or None for an output, whose elements are guards too.
    """

    def __init__(self, dtype, layout, device, values=None):
        self.dtype, self.layout, self.device = dtype, layout, device
        self.item = numpy_dtype(dtype).itemsize
        self.bytes = np.full(max(layout.size, 1) * self.item, GUARD, np.uint8)
        if values is not None:
            self.host()[...] = values
        self.keep_as_is()

    def keep_as_is(self):
        """Takes the bytes as they are now for the beginning."""
        self.before = self.bytes.copy()
        self.memory = Cuda(self.bytes) if self.device == "cuda" else None

    def poison(self, byte):
        self.bytes[:] = byte
        self.keep_as_is()

    def as_dtype(self, dtype):
        """The same memory as elements of another dtype of the same size."""
        other = Tensor.__new__(Tensor)
        vars(other).update(vars(self), dtype=dtype)
        return other

    def host(self, data=None):
        """A view of the elements in host memory."""
        store = (self.bytes if data is None else data).view(numpy_dtype(self.dtype))
        strides = [stride * self.item for stride in self.layout.strides]
        shape = self.layout.shape
        if 0 in shape:
            return np.empty(shape, store.dtype)
        return np.lib.stride_tricks.as_strided(store[self.layout.offset :], shape, strides)

    def give(self):
        """What is handed to aicf."""
        if self.memory is None:
            return self.host()
        where = self.layout.offset * self.item
        layout = self.layout
        return Foreign(
            self.memory.address,
            self.dtype,
            layout.shape,
            layout.strides,
            where,
            device=(2, 0),
            keep=self.memory,
        )

    def data(self):
        """All bytes as they are now."""
        return self.bytes if self.memory is None else self.memory.read()

    def read(self):
        """The elements now, in C order."""
        return self.host(self.data()).copy()

    def changed(self):
        """Whether any byte differs from the beginning."""
        return not np.array_equal(self.data(), self.before)

    def guards_changed(self):
        """Whether a byte that belongs to no element differs from the beginning."""
        inside = np.zeros(max(self.layout.size, 1), bool)
        if 0 not in self.layout.shape:
            start = inside[self.layout.offset :]
            np.lib.stride_tricks.as_strided(start, self.layout.shape, self.layout.strides)[...] = 1
        outside = np.repeat(~inside, self.item)
        return not np.array_equal(self.data()[outside], self.before[outside])
