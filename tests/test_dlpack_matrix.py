"""Every kind of tensor that DLPack can say, into every door: a view, a copy or a typed error.

The combinations run in children forked from this process, which has imported every framework by
then; a child that dies names the combination it was at.
"""

import itertools
import mmap
import os
import sys
import warnings

import aicf
import numpy as np
import pytest
from compare import numpy_dtype
from tensors import Foreign

DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "uint8", "int16", "int8", "bool")
SHAPES = ((), (0, 3), (1,), (5,), (3, 4), (2, 1, 3))
STRIDES = ("null", "c", "turned", "negative", "zero", "gaps")
OFFSETS = ("none", "elements", "odd")
PRODUCERS = ("versioned", "read-only", "unversioned", "numpy", "numpy read-only")
ROOM = 2048  # bytes of memory; every layout below stays inside, wherever it starts
MIDDLE = 1024
BATCH = 105

MATRIX = list(itertools.product(PRODUCERS, DTYPES, SHAPES, STRIDES, OFFSETS))


def test_matrix_size():
    assert len(MATRIX) >= 2000


def strides_of(kind, shape):
    """In elements; None for a NULL pointer."""
    dense = [int(np.prod(shape[i + 1 :])) for i in range(len(shape))]
    return {
        "null": None,
        "c": dense,
        "turned": [int(np.prod(shape[:i])) for i in range(len(shape))],
        "negative": [-s for s in dense],
        "zero": [0] * len(shape),
        "gaps": [2 * s + 1 for s in dense],
    }[kind]


class Given:
    """One combination: the memory, what is handed over, and what NumPy sees there."""

    def __init__(self, producer, dtype, shape, strides, offset):
        self.kind, self.shape = numpy_dtype(dtype), shape
        item = self.kind.itemsize
        self.memory = np.resize(np.array([0, 1, 1, 0, 1], np.uint8), ROOM + 64)
        start = -self.memory.ctypes.data % 64  # aligned
        self.memory = self.memory[start : start + ROOM]
        self.at = MIDDLE + {"none": 0, "elements": 3 * item, "odd": 1}[offset]
        self.steps = strides_of(strides, shape)
        dense = strides_of("c", shape)
        self.byte_strides = [s * item for s in (dense if self.steps is None else self.steps)]
        self.unaligned = offset == "odd" and item > 1 and 0 not in shape
        self.read_only = producer.endswith("read-only")
        if producer.startswith("numpy"):
            self.tensor = np.ndarray(shape, self.kind, self.memory, self.at, self.byte_strides)
            self.tensor.flags.writeable = not self.read_only
        else:
            self.tensor = Foreign(
                self.memory.ctypes.data,
                dtype,
                shape,
                self.steps,
                self.at,
                versioned=producer != "unversioned",
                read_only=self.read_only,
                keep=self.memory,
            )

    def values(self):
        """A copy of the elements, byte by byte."""
        out = np.empty(self.shape, self.kind)
        for index in np.ndindex(self.shape):
            at = self.at + sum(i * s for i, s in zip(index, self.byte_strides, strict=True))
            size = self.kind.itemsize
            out[index] = self.memory[at : at + size].copy().view(self.kind)[0]
        return out

    def alone(self):
        """Whether each element has an address of its own."""
        starts = {
            sum(i * s for i, s in zip(index, self.byte_strides, strict=True))
            for index in np.ndindex(self.shape)
        }
        return len(starts) == int(np.prod(self.shape))


def same(got, want):
    return np.asarray(got, want.dtype).tobytes() == want.tobytes()


def into_step(given, steps):
    """Copied in, from any layout and alignment."""
    want = given.values()
    got = steps["input"](x=given.tensor)["y"].numpy()
    assert same(got, want), f"{got!r}, need {want!r}"


def as_input(given, steps):
    want, out = given.values(), np.ones(given.shape, given.kind)
    try:
        aicf.op_call("copy", [given.tensor], [out])
    except aicf.Unsupported as error:
        assert given.unaligned and "unaligned" in str(error), error
        assert (out == 1).all()
    else:
        assert not given.unaligned and same(out, want), f"{out!r}, need {want!r}"


def as_output(given, steps):
    source = np.resize(np.array([1, 0, 0, 1, 1, 0, 1]), given.shape).astype(given.kind)
    before, touched = given.memory.copy(), np.zeros(ROOM, bool)
    for index in np.ndindex(given.shape):
        at = given.at + sum(i * s for i, s in zip(index, given.byte_strides, strict=True))
        touched[at : at + given.kind.itemsize] = True
    try:
        aicf.op_call("copy", [source], [given.tensor])
    except aicf.Error as error:
        refused = given.unaligned or given.read_only or not given.alone()
        assert refused and type(error) in (aicf.Unsupported, aicf.GraphError), error
        assert np.array_equal(given.memory, before), f"written, then refused: {error}"
    else:
        assert not (given.unaligned or given.read_only) and given.alone()
        assert same(given.values(), source), f"{given.values()!r}, need {source!r}"
        assert np.array_equal(given.memory[~touched], before[~touched]), "written beside it"


def bound(given, steps):
    """As an input it is read in place, whether it is read-only or not."""
    step = steps["bind"]
    try:
        step.bind(x=given.tensor)
    except aicf.Error as error:
        assert type(error) in (aicf.Unsupported, aicf.GraphError, aicf.ShapeError), error
        return
    got = step.replay()["y"].numpy()
    assert same(got, given.values())
    given.memory[:] ^= 1  # still zeros and ones
    assert same(step.replay()["y"].numpy(), given.values()), "a copy was bound"
    step.bind(x=np.zeros(given.shape, given.kind))


DOORS = (into_step, as_input, as_output, bound)


def run_batch(batch, steps, progress):
    """In a child: writes its place into shared memory before each call."""
    for k in batch:
        combination = MATRIX[k]
        for door_at, door in enumerate(DOORS):
            progress[:8] = (k * len(DOORS) + door_at).to_bytes(8, "little")
            try:
                door(Given(*combination), steps[combination[1], combination[2]])
            except BaseException as error:  # noqa: BLE001  (the parent reports it)
                text = f"{type(error).__name__}: {error}".encode()[:3000]
                progress[8 : 8 + len(text)] = text
                return 1
    return 0


@pytest.fixture(scope="module")
def steps():
    """Compiled before the fork, as everything else."""
    for name in ("torch", "jax.numpy", "ml_dtypes"):
        pytest.importorskip(name)
    made = {}
    for dtype, shape in itertools.product(DTYPES, SHAPES):
        made[dtype, shape] = {}
        for use in ("input", "bind"):
            g = aicf.Graph(use)
            g.output("y", g.input("x", shape, dtype))
            made[dtype, shape][use] = g.compile(device="cpu")
    return made


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("start", range(0, len(MATRIX), BATCH))
def test_every_combination(start, steps):
    assert "torch" in sys.modules and "jax" in sys.modules
    batch = range(start, min(start + BATCH, len(MATRIX)))
    progress = mmap.mmap(-1, 4096)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # frameworks with threads warn of any fork
        child = os.fork()
    if child == 0:
        code = 2
        try:
            code = run_batch(batch, steps, progress)
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if status:
        at = int.from_bytes(progress[:8], "little")
        place = f"{DOORS[at % len(DOORS)].__name__} of {MATRIX[at // len(DOORS)]}"
        said = progress[8:].split(b"\0", 1)[0].decode(errors="replace")
        how = (
            f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else said or f"exit {status}"
        )
        pytest.fail(f"{place}: {how}", pytrace=False)
