"""Producers that say through DLPack what no tensor can be: each is refused by name at every door,
and its deleter runs exactly once.

All run in one child, which names each case before it tries it: what dies names itself.
"""

import ctypes
import enum
import gc
import os
import subprocess
import sys

import aicf
import numpy as np
import pytest
import tensors
from tensors import Foreign

HERE = os.path.dirname(os.path.abspath(__file__))
FAR = 2**62


class Hostile(Foreign):
    """A sound float32[2] tensor, but for what `edit` does to its managed struct."""

    def __init__(self, edit=None, name=None, **rest):
        self.memory = np.ones(8, np.float32)
        super().__init__(self.memory.ctypes.data, "float32", (2,), (1,), **rest)
        self.edit, self.name = edit, name

    def __dlpack__(self, **options):
        capsule = super().__dlpack__(**options)
        managed, *_ = list(tensors.alive.values())[-1]
        if self.edit:
            self.edit(managed)
        if self.name is not None:
            set_name(capsule, self.name)
        return capsule


set_name = ctypes.pythonapi.PyCapsule_SetName
set_name.argtypes = [ctypes.py_object, ctypes.c_char_p]


def field(name, value):
    return lambda managed: setattr(managed.tensor, name, value)


def numbers(name, *values):
    def edit(managed):
        array = (ctypes.c_int64 * len(values))(*values)
        managed.kept = array
        setattr(managed.tensor, name, array)
        if name == "shape":
            managed.tensor.ndim = len(values)

    return edit


def both(*edits):
    return lambda managed: [edit(managed) for edit in edits]


def null(name):
    return field(name, None)


EDITS = {
    "no dimensions below zero": field("ndim", -1),
    "the least number of dimensions": field("ndim", -(2**31)),
    "nine dimensions": numbers("shape", *[1] * 9),
    "the most dimensions": field("ndim", 2**31 - 1),
    "no shape": null("shape"),
    "no data": null("data"),
    "no data at an offset": both(null("data"), field("byte_offset", 4096)),
    "a size below zero": numbers("shape", -1),
    "the least size": numbers("shape", -(2**63)),
    "sizes beyond 64 bits": both(null("strides"), numbers("shape", FAR, FAR)),
    "sizes beyond memory": both(null("strides"), numbers("shape", FAR)),
    "one element all over": both(numbers("strides", 0), numbers("shape", FAR)),
    "an offset beyond memory": field("byte_offset", 2**64 - 4),
    "an offset of all memory": field("byte_offset", 2**64 - 1),
    "a stride beyond 64 bits": numbers("strides", 2**62),
    "the least stride": numbers("strides", -(2**63)),
    "a stride before memory": numbers("strides", -(2**61)),
    "many lanes": field("lanes", 65535),
    "no lanes": field("lanes", 0),
    "no bits": field("bits", 0),
    "33 bits": field("bits", 33),
    "255 bits": field("bits", 255),
    "no such type": field("code", 255),
    "complex": field("code", 5),
    "device 0": field("device_type", 0),
    "device -1": field("device_type", -1),
    "no such device": field("device_type", 2**31 - 1),
    "version 2": lambda managed: setattr(managed, "major", 2),
    "version 0": lambda managed: setattr(managed, "major", 0),
    "the last version": lambda managed: setattr(managed, "major", 2**32 - 1),
}


class Answers:
    """A producer whose two methods return what they are told, or raise it."""

    def __init__(self, capsule, device=(1, 0)):
        self.capsule, self.device = capsule, device

    def answer(self, what):
        if isinstance(what, BaseException):
            raise what
        return what() if callable(what) else what

    def __dlpack__(self, **options):
        return self.answer(self.capsule)

    def __dlpack_device__(self):
        return self.answer(self.device)


def used():
    capsule = Hostile().__dlpack__()
    aicf.Graph("use").constant(Answers(capsule))
    return capsule


class Kind(enum.Enum):
    cpu = 1


def producers():
    """(name, producer, whether it hands out a capsule that we take)."""
    for versioned in (True, False):
        for name, edit in EDITS.items():
            if versioned or "version" not in name:
                yield f"{name}, {versioned}", Hostile(edit, versioned=versioned), True
        yield f"another name, {versioned}", Hostile(name=b"tensor", versioned=versioned), False
        yield (
            f"a used name, {versioned}",
            Hostile(name=b"used_dltensor", versioned=versioned),
            False,
        )
    yield "a used capsule", Answers(used), False
    itself = Answers(None)
    itself.capsule = itself
    yield "itself", itself, False
    for what in (None, 3, "dltensor", b"", object(), {}, np.ones(2)):
        yield f"returns {what!r}", Answers(what), False
    for what in (ValueError("no"), TypeError("no"), BufferError(), RuntimeError("x" * 9000),
                 StopIteration(), AttributeError("__dlpack__"), RecursionError()):  # fmt: skip
        yield f"raises {type(what).__name__}", Answers(what), False
        yield f"device raises {type(what).__name__}", Answers(None, what), False
    for what in (None, 1, "cpu", (1,), (1, 0, 0), (2**70, 0), (1, -(2**70)), ("1", 0), (None, None),
                 (1.5, 0), [1, 0], (Kind.cpu, 0), {}, object()):  # fmt: skip
        yield f"device {what!r}", Answers(Hostile().__dlpack__, what), False


def doors():
    """Each place where a tensor enters, as a function of it."""
    g = aicf.Graph("g")
    w = g.param("w", (2,))
    g.output("y", g.input("x", (2,)) + w)
    step = g.compile(device="cpu")
    out = np.zeros(2, np.float32)
    return {
        "call": lambda t: step(x=t),
        "run": lambda t: step.run(x=t),
        "bind": lambda t: step.bind(x=t),
        "params": lambda t: step.params.__setitem__("w", t),
        "load": lambda t: step.load_state_dict({"w": t}),
        "constant": lambda t: aicf.Graph("c").constant(t),
        "init": lambda t: aicf.Graph("i").param("w", (2,), init=t),
        "op_call in": lambda t: aicf.op_call("neg", [t], [out]),
        "op_call out": lambda t: aicf.op_call("neg", [out], [t]),
    }


def try_all():
    tried = 0
    for door, enter in doors().items():
        for name, producer, taken in producers():
            print(f"{door}: {name}", file=sys.stderr, flush=True)
            before, given = tensors.deleted[0], len(tensors.alive)
            try:
                enter(producer)
            except aicf.Error as error:
                assert not isinstance(error, aicf.InternalError), error
                text = str(error)
                assert len(text.encode()) <= 2048 and "std::" not in text, text
            else:
                raise AssertionError("taken as it is")
            gc.collect(0)
            if taken and door != "load":  # which looks at its shape first
                assert tensors.deleted[0] == before + 1, "deleter"
                assert len(tensors.alive) == given
            tried += 1
    print(tried)


def test_hostile_tensors():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", "import test_hostile_tensors as t; t.try_all()"],
        cwd=HERE, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-1500:]
    assert int(done.stdout) > 800


@pytest.mark.parametrize("what", [KeyboardInterrupt, SystemExit, MemoryError])
def test_what_is_not_about_the_tensor_passes(what):
    g = aicf.Graph("g")
    with pytest.raises(what):
        g.constant(Answers(what()))


def test_numbers_of_other_kinds():
    """What stands for an int is one: an enum of ints, NumPy's."""

    class Device(enum.IntEnum):
        cpu = 1

    g = aicf.Graph("g")
    for device in ((Device.cpu, 0), (np.int32(1), np.int64(0))):
        assert g.constant(Answers(Hostile().__dlpack__, device)).shape == (2,)
