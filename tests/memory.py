"""Lets one allocation at a time fail, on every road through aicf.

    python tests/memory.py [--most N] [--kinds once,rest,python] [--verbose] [road ...]
    python tests/memory.py --driver FOLDER [--kinds once,rest,device,device-rest] ...

For each road (tests/memory_roads.py) and every k: the k-th allocation fails ("once"), or it and all
after it ("rest"), or the k-th of the interpreter itself ("python"), or with a folder that holds the
fake CUDA driver and a kernel cache the k-th call that asks the driver for memory ("device"). The
process must live, the error be a MemoryError (aicf.OutOfMemory where the memory was ours), what the
road promises not to change be unchanged, and the same act then succeed with the bits of a process
that nothing disturbed. --most bounds how many k are tried for a road, evenly spread. Prints a line
a road; ends with status 1 when anything was wrong.
"""

import argparse
import ctypes
import gc
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

HERE = Path(__file__).parent
LIMIT_S = 60  # an act that takes longer hangs


def missing():
    """Why memory cannot be let fail here; empty where it can."""
    if not sys.platform.startswith("linux") or not hasattr(ctypes.CDLL(None), "__libc_memalign"):
        return "needs glibc"
    return "" if shutil.which("g++") else "no g++ to build the failing allocator with"


def build_library(folder):
    library = Path(folder) / "libfailing_memory.so"
    source = HERE / "failing_memory" / "failing_memory.cpp"
    subprocess.run(
        ["g++", "-std=c++20", "-O1", "-shared", "-fPIC", str(source), "-o", str(library), "-ldl"],
        check=True,
    )
    return library


def start(library, arguments, driver=None, **options):
    """This program in a process that the library serves."""
    environment = {**os.environ, "LD_PRELOAD": str(library), "AICF_NUM_THREADS": "2"}
    if driver:
        environment |= {"LD_LIBRARY_PATH": str(driver), "MEMORY_DEVICE": "cuda"}
        environment |= {"AICF_CACHE_DIR": os.path.join(driver, "cache")}
    command = [sys.executable, __file__, "--inside", *map(str, arguments)]
    return subprocess.run(command, env=environment, **options)


# ---- inside


def flat(value):
    """The value with arrays as their bytes, so that == compares bits."""
    import numpy as np

    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, dict):
        return [(key, flat(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return [flat(item) for item in value]
    return value


class Trial:
    """One road in this process."""

    def __init__(self, road):
        import aicf

        self.out_of_memory = aicf.OutOfMemory
        self.road = road

    def arm(self, k, kind):
        """Also says what ends it, before anything is counted."""
        if kind.startswith("device"):
            library = ctypes.CDLL("libcuda.so.1")
            self.disarm = library.fake_cuda_disarm
            library.fake_cuda_arm(k, kind == "device-rest")
        else:
            library = ctypes.CDLL(None)
            self.disarm = library.failing_memory_disarm
            library.failing_memory_arm(k, kind == "rest", kind == "python")

    def act(self, k=0, kind="once", again=False):
        """The act's result, or the error of one that did not succeed; counts the calls."""
        road, failure, found = self.road, None, None
        act = road.again if again else road.act
        gc.collect()
        gc.disable()
        self.arm(k, kind)
        try:
            found = act()
            self.calls = self.disarm()
        except BaseException as error:  # whatever it is, it is looked at
            self.disarm()
            failure = error
        gc.enable()
        if failure is not None:
            return None, failure
        return flat(road.result(found) if hasattr(road, "result") else found), None

    def fails(self, k, kind, expected):
        """Lets call k fail; what was wrong, in words, empty when nothing was."""
        road = self.road
        before = flat(road.state())
        found, failure = self.act(k, kind)
        raised = failure is not None
        if raised:
            wanted = MemoryError if kind == "python" else self.out_of_memory
            if not isinstance(failure, wanted):
                text = "".join(traceback.format_exception(failure))
                return f"{type(failure).__name__} where OutOfMemory was due: {text}"
            failure.__traceback__ = None
            failure = None
            gc.collect()
            if flat(road.state()) != before:
                return "the act that raised has changed what it must not"
            found, failure = self.act(again=True)
            if failure is not None:
                text = "".join(traceback.format_exception(failure))
                return f"the next act fails: {text}"
        if found != expected:
            return f"other results {'after a failure' if raised else 'without an error'}"
        road.restore()
        return ""


class Child:
    """A forked process that sends what it has to say, pickled."""

    def __init__(self, work, verbose):
        sys.stdout.flush()
        out, into = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(out)
            if not verbose:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            status = 1
            try:
                with os.fdopen(into, "wb", 0) as pipe:
                    work(lambda *said: pipe.write(pickle.dumps(said)))
                status = 0
            finally:
                os._exit(status)
        os.close(into)
        self.pipe = os.fdopen(out, "rb")

    def said(self):
        while True:
            try:
                yield pickle.load(self.pipe)
            except EOFError:
                return

    def status(self):
        self.pipe.close()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def death(status):
    return signal.Signals(-status).name if status < 0 else f"exit {status}"


def check_road(make, kind, most, only, verbose):
    """(calls, tried, [(k, what was wrong)], of them deaths)"""
    road = make()
    late = road.fresh or "MEMORY_DEVICE" in os.environ  # a device does not outlive a fork
    if not late:
        road.prepare()
    trial = Trial(road)

    def warm():
        if late:
            road.prepare()
        if not road.fresh:
            trial.act()
            road.restore()
        gc.freeze()  # so that collecting what an act left is quick

    def count(say):
        warm()
        expected, failure = trial.act(0, kind)
        if failure is not None:
            raise failure
        say(trial.calls, expected)

    child = Child(count, True)
    counted = list(child.said())
    if child.status() or not counted:
        raise RuntimeError(f"{make.__name__} does not run undisturbed")
    calls, expected = counted[0]
    stride = max(1, -(-calls // most)) if most else 1
    left = only or list(range(1, calls + 1, stride))
    tried, wrong, deaths = len(left), [], 0

    def batch(say):
        warm()
        for k in left[:1] if road.fresh else left:
            signal.alarm(LIMIT_S)
            say("start", k)
            try:
                said = trial.fails(k, kind, expected)
            except BaseException:
                said = traceback.format_exc()
            say("end", said)
            if said:  # what it left is not to be built upon
                return

    while left:
        child, k = Child(batch, verbose), None
        for what, value in child.said():
            if what == "start":
                k = value
                left.remove(k)
            else:
                if value:
                    wrong.append((k, value))
                k = None
        status = child.status()
        if status:
            deaths += 1
            wrong.append((k, death(status)))
            if k is None:
                raise RuntimeError(f"{make.__name__} ends with {death(status)} before any failure")
    return calls, tried, wrong, deaths


def inside(arguments):
    import aicf  # noqa: F401
    from memory_roads import CUDA_ROADS, ROADS

    memory = ctypes.CDLL(None)
    if not memory.failing_memory_watch(b"/_core.") or not memory.failing_memory_watch(b"libstdc++"):
        sys.exit("the extension is not loaded")
    kinds = arguments.kinds.split(",")
    if "python" in kinds and not memory.failing_memory_watch_python():
        sys.exit("the interpreter does not show its allocators")
    total = {"calls": 0, "tried": 0, "wrong": 0, "deaths": 0}
    for name in arguments.roads or (CUDA_ROADS if "MEMORY_DEVICE" in os.environ else ROADS):
        for kind in kinds:
            calls, tried, wrong, deaths = check_road(
                ROADS[name], kind, arguments.most, arguments.only[:], arguments.verbose
            )
            print(
                f"{name} {kind}: {calls} allocations, {tried} failed, {deaths} deaths, "
                f"{len(wrong)} wrong",
                flush=True,
            )
            for k, said in wrong[: arguments.shown]:
                print(f"  {k}: {said.strip()}", flush=True)
            for key, value in zip(total, (calls, tried, len(wrong), deaths), strict=True):
                total[key] += value
    print("total: " + ", ".join(f"{value} {key}" for key, value in total.items()))
    sys.exit(bool(total["wrong"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--driver", help="folder of the fake CUDA driver")
    parser.add_argument("--most", type=int, default=0, help="failures a road; 0 tries all")
    parser.add_argument("--only", type=int, nargs="*", default=[], help="these k alone")
    parser.add_argument("--kinds", default="once,rest")
    parser.add_argument("--shown", type=int, default=5, help="wrong ones printed a road")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("roads", nargs="*")
    arguments = parser.parse_args()
    if arguments.inside:
        inside(arguments)
    if missing():
        sys.exit(missing())
    with tempfile.TemporaryDirectory() as folder:
        library = build_library(folder)
        sys.exit(start(library, sys.argv[1:], arguments.driver).returncode)


if __name__ == "__main__":
    main()
