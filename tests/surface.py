"""Every function and method that Python can reach, with arguments that none of them expects.

    python tests/surface.py --calls 200000 --seed 7

A call returns, or raises an exception of a documented kind; at the public surface its text is in
words of ours. Each call is written to stderr before it is made: what dies names itself.
"""

import argparse
import collections
import contextlib
import faulthandler
import inspect
import io
import json
import os
import random
import re
import resource
import sys
import warnings

import aicf
import numpy as np
from aicf import _core

MOST_BYTES = 3 << 30
MOST_TEXT = 2048  # bytes of a message
FOREIGN = re.compile(r"nanobind:|std::|bad_cast|incompatible function arguments|Invoked with types")
KINDS = (
    aicf.Error,
    TypeError,
    ValueError,
    OverflowError,
    IndexError,
    KeyError,
    BufferError,
    MemoryError,
    AttributeError,
    RecursionError,
    OSError,
    StopIteration,
    ZeroDivisionError,
)  # of NumPy's arrays of objects; fmt: skip
COUNTED_BY_NANOBIND = {  # too quick for an argument count of our own
    "_core.Step.replay",
    "_core.Array.numpy",
    "_core.Array.item",
}
AWAY = {  # what ends the process, blocks, or changes it for the calls that follow
    "eager_close",
    "_core.cuda_clear_cache",
}


class Bench:
    """One good object of each class, made anew so that no call spoils the next ones."""

    def __init__(self):
        self.graph = aicf.Graph("bench")
        x, w = self.graph.input("x", (3, 4)), self.graph.param("w", (2, 4))
        loss = aicf.sum(aicf.linear(x, w))
        self.graph.minimize(loss, aicf.optim.Adam(lr=0.1))
        self.graph.output("loss", loss)
        self.step = self.graph.compile(device="cpu")
        self.outputs = self.step(x=np.ones((3, 4), np.float32))
        self.good = [
            self.graph, x, self.step, self.outputs, self.outputs["loss"], self.step.params["w"],
            self.step.params, self.graph.verify(), self.graph._core, self.graph._core.mark(),
            _core.GraphReader("r", True), aicf.optim.Adam(lr=0.1), aicf.init.zeros(),
            aicf.OpKind.gemm, aicf.Event("cpu"), self.step.plan,
        ]  # fmt: skip

    def of(self, kind):
        return next((good for good in self.good if isinstance(good, kind)), None)


class Raises:
    """Every question asked of it is an error of its own."""

    def __getattr__(self, name):
        raise RecursionError(name)

    __index__ = __float__ = __len__ = __iter__ = __bool__ = __hash__ = __getattr__


def half_built():
    """An instance of every class whose __init__ never ran."""
    for kind in [*vars(_core).values(), *vars(aicf).values()]:
        if isinstance(kind, type) and not issubclass(kind, BaseException):
            with contextlib.suppress(TypeError):
                yield kind.__new__(kind)


def nasties():
    loop = []
    loop.append(loop)
    return [
        None, "abc", "", "\0", "\ud800", "x", "float32", "cpu", 0, 1, -1, 2**63, 2**70,
        -(2**63), 0.5, float("nan"), float("inf"), 1j, True, object(), object, [], (), {}, set(),
        b"", b"\0" * 9, [1] * 100000, ["x"] * 1000, [[]], {"a": 1}, {1: 2}, {"x": object()}, loop,
        [None], [2**70], np.ones(3), np.ones((3, 4), np.float32), np.zeros((), "O"), len,
        np.float32(1), range(3), (2, 3), (-1,), (2**62, 2**62), lambda *a, **k: None, Raises(),
        aicf, Ellipsis,
    ]  # fmt: skip


def targets():
    """(name, callable, class or None, public) of all there is to call."""
    seen = set()
    for module, public in ((_core, False), (aicf, True), (aicf.optim, True), (aicf.init, True)):
        for name, item in sorted(vars(module).items()):
            path = f"{module.__name__.removeprefix('aicf.')}.{name}"
            if name.startswith("__") or name in AWAY or path in AWAY or inspect.ismodule(item):
                continue
            if isinstance(item, type) and issubclass(item, BaseException):
                continue
            if isinstance(item, type):
                if not getattr(item, "__module__", "").startswith("aicf") or item in seen:
                    continue
                shown = public or any(item is one for one in vars(aicf).values())
                seen.add(item)
                yield path, item, None, shown
                for key, member in sorted(vars(item).items()):
                    if isinstance(member, property):
                        member = member.__get__  # of one object
                    if isinstance(member, (staticmethod, classmethod)):
                        member = member.__func__
                    if callable(member) and not isinstance(member, type):
                        yield f"{path}.{key}", member, item, shown and public_name(key)
            elif callable(item):
                yield path, item, None, public


def public_name(name):
    """Python itself counts the arguments of the special methods behind operators."""
    return not name.startswith("_") or name in ("__call__", "__array__", "__dlpack__")


def short(x):
    """An argument as the log shows it, which must not call anything of it."""
    return f"<{type(x).__name__}>" if not isinstance(x, (int, float, str)) else repr(x)[:40]


def one_call(name, call, kind, public, bench, rng, table):
    getter = isinstance(getattr(call, "__self__", None), property)
    count = 0 if getter else rng.choice((0, 1, 1, 1, 2, 2, 3, 4, 9))
    args = [rng.choice(table) for _ in range(count)]
    if kind is not None:
        good = bench.of(kind)
        first = good if good is not None and rng.random() < 0.7 else rng.choice(table[1:])
        args.insert(0, first)
    named = {}
    if not getter and rng.random() < 0.2:
        with contextlib.suppress(TypeError, ValueError, IndexError):
            names = list(inspect.signature(call).parameters)
            named = {rng.choice(names): rng.choice(table)}
    if not getter and rng.random() < 0.1:
        named["no_such_argument"] = rng.choice(table)
    said = f"{name}({', '.join(map(short, args))}, {[(k, short(v)) for k, v in named.items()]})\n"
    os.write(2, said.encode("ascii", "backslashreplace"))
    try:
        call(*args, **named)
    except KINDS as error:
        kind_of, text = type(error).__name__, str(error)
        if isinstance(error, aicf.InternalError):
            return "fault", f"{said}{kind_of}: {text[:300]}"
        if public and FOREIGN.search(text) and name not in COUNTED_BY_NANOBIND:
            return "fault", f"{said}{kind_of}: {text[:300]}"
        if isinstance(error, aicf.Error) and len(text.encode("utf8", "replace")) > MOST_TEXT:
            return "fault", f"{said}{kind_of} of {len(text)} characters"
        return kind_of, ""
    except Exception as error:
        return "fault", f"{said}{type(error).__name__}: {str(error)[:300]}"
    return "returned", ""


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    warnings.simplefilter("ignore")
    os.chdir(os.environ.get("TMPDIR", "/tmp"))
    rng = random.Random(asked.seed)
    every = list(targets())
    bench, table = Bench(), []
    tally, faults = collections.Counter(), {}
    real = sys.stdout
    for number in range(asked.calls):
        if number % 200 == 0:
            bench = Bench()
            table = [*nasties(), *bench.good, *half_built()]
        faulthandler.dump_traceback_later(60, exit=True)
        with contextlib.redirect_stdout(io.StringIO()):
            target = every[number % len(every)]
            fate, text = one_call(*target, bench, rng, table)
        tally[fate] += 1
        if fate == "fault":
            faults.setdefault((target[0], text.splitlines()[-1][:60]), text)
    faulthandler.cancel_dump_traceback_later()
    aicf.set_num_threads(0)
    for text in faults.values():
        print(text, file=real)
    print(json.dumps({"targets": len(every), "calls": asked.calls, "faults": len(faults), **tally}))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
