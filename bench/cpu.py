"""Times the CPU backend against its peers and prints one table.

    python bench/cpu.py [section ...] [--threads 1 2] [--rounds 11] [--json FILE]

Every count of threads is measured in a process of its own that may use so many cores. There, all
libraries take turns on the same random data: a round times each once (the best of a few short
readings), and a ratio is the peer's time over ours in the same round: above 1, ours is faster.
"""

import argparse
import concurrent.futures
import contextlib
import datetime
import functools
import json
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

import aicf
import numpy as np
import test_train_step as mlp
from aicf import _core
from conftest import versions

SMALL, LARGE = mlp.CONFIGS
MILLION = 1 << 20
READING, READINGS = 2e-3, 5  # seconds at least, and how many make the figure of a round
LONG = 1.0  # seconds of a reading where processors are shared
# seconds: until the threads of the library before, which spin a while, are asleep
PAUSE = 0.05 if os.environ.get("AICF_NUM_THREADS") == "1" else 0.25


def reading(call, times):
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times


def take_turns(calls, rounds):
    """{name: seconds of each round}; calls: {name: (function, units of work in one call)}."""
    times, taken = {}, {name: [] for name in calls}
    for name, (call, _) in calls.items():
        reading(call, 3)
        times[name] = max(1, int(READING / max(reading(call, 3), 1e-7)))
    for turn in range(rounds):
        for name in list(calls)[:: 1 if turn % 2 else -1]:
            call, work = calls[name]
            time.sleep(PAUSE)
            call()
            best = min(reading(call, times[name]) for _ in range(READINGS))
            taken[name].append(best / work)
    return taken


def row(case, calls, rounds):
    """One line of the table; the first call is ours."""
    return summary(case, take_turns(calls, rounds))


def summary(case, taken):
    first = next(iter(taken))
    result = {"case": case, "us": {}, "ratio": {}}
    for name, seconds in taken.items():
        result["us"][name] = statistics.median(seconds) * 1e6
        if name != first:
            ratios = [theirs / ours for theirs, ours in zip(seconds, taken[first], strict=True)]
            result["ratio"][name] = [statistics.median(ratios), min(ratios), max(ratios)]
    return result


def replay(build, times=1, passes="default"):
    """(function, units of work) of a compiled graph; its operands are states."""
    g = aicf.Graph("bench")
    shapes = build(g)
    step = g.compile(device="cpu", passes=passes)
    for i, (name, shape) in enumerate(shapes.items()):
        step.state[name] = np.random.default_rng(i).standard_normal(shape, dtype=np.float32)
    return functools.partial(step.replay, times), times


def randoms(*shapes):
    import torch

    arrays = [np.random.default_rng(i).standard_normal(s, np.float32) for i, s in enumerate(shapes)]
    return arrays, [torch.from_numpy(a) for a in arrays]


# ---- sections -----------------------------------------------------------------------------------


def steps(config, ours, names):
    calls = {}
    for name in [ours, *names]:
        call, _, work = mlp.PEERS[name](config)
        calls[name] = (call, work)
    return calls


PEER_STEPS = ("numpy", "torch.compile", "torch.compile whole step", "jax jit", "jax scan(100)")


def small(rounds, threads):
    """The training step of an 8-8-8 network, batch 64."""
    for ours in ("aicf call", "aicf replay(100)"):
        yield row(f"{SMALL}, {ours}", steps(SMALL, ours, PEER_STEPS), rounds)


def large(rounds, threads):
    """The training step of a 784-512-512-10 network, batch 128."""
    for ours in ("aicf call", "aicf replay(100)"):
        yield row(f"{LARGE}, {ours}", steps(LARGE, ours, PEER_STEPS), rounds)


def gemm(rounds, threads):
    """C = A B, all row-major; then the layouts of a layer's backward pass.

    A replay has no call from Python for each product, which decides the small ones: compare
    their peers with op_call.
    """
    import torch

    shapes = [(n, n, n) for n in (256, 512, 1024, 2048)]
    shapes += [(64, 8, 8), (128, 10, 512), (128, 512, 10), (128, 512, 784)]
    cases = [(m, n, k, "NN") for m, n, k in shapes]
    cases += [(128, 512, 784, "NT"), (512, 784, 128, "TN"), (128, 512, 512, "NN")]
    for m, n, k, kind in cases:
        shape_a = (k, m) if kind[0] == "T" else (m, k)
        shape_b = (n, k) if kind[1] == "T" else (k, n)
        (a, b), (ta, tb) = randoms(shape_a, shape_b)
        a, ta = (a.T, ta.T) if kind[0] == "T" else (a, ta)
        b, tb = (b.T, tb.T) if kind[1] == "T" else (b, tb)
        c, d = np.empty((m, n), np.float32), torch.empty(m, n)

        def build(g, shape_a=shape_a, shape_b=shape_b, kind=kind):
            x, y = g.state("a", shape_a), g.state("b", shape_b)
            x, y = x.T if kind[0] == "T" else x, y.T if kind[1] == "T" else y
            g.output("c", aicf.matmul(x, y))
            return {"a": shape_a, "b": shape_b}

        one_dnn = functools.partial(torch.ops.mkldnn._linear_pointwise, ta, tb.T, None, "none", [])
        assert torch.allclose(one_dnn(""), ta @ tb, atol=1e-2)
        calls = {
            "aicf replay": replay(build, max(1, int(1e7 / (m * n * k)))),
            "aicf op_call": (functools.partial(aicf.op_call, "gemm", [a, b], [c]), 1),
            "OpenBLAS (numpy)": (functools.partial(np.matmul, a, b, out=c), 1),
            "oneDNN (torch)": (functools.partial(one_dnn, ""), 1),
            "MKL (torch)": (functools.partial(torch.mm, ta, tb, out=d), 1),
        }
        yield row(f"{m}x{n}x{k} {kind}", calls, rounds)


def pointwise(rounds, threads):
    """Functions of 16 M floats, results into memory that is there already."""
    import torch

    n = 16 * MILLION
    (a, b), (ta, tb) = randoms(n, n)
    out, tout = np.empty_like(a), torch.empty(n)

    def chain(a, b, out):
        return out.copy_(torch.sin(a) * b + torch.exp(-a * a))

    compiled = torch.compile(chain, fullgraph=True)
    compiled(ta, tb, tout)
    assert np.allclose(tout, np.sin(a) * b + np.exp(-a * a), atol=1e-5)
    for name in ("exp", "sin"):

        def build(g, name=name):
            g.output("y", getattr(aicf, name)(g.state("a", (n,))))
            return {"a": (n,)}

        calls = {
            "aicf": replay(build),
            "numpy": (functools.partial(getattr(np, name), a, out=out), 1),
            "torch": (functools.partial(getattr(torch, name), ta, out=tout), 1),
            "copy": (functools.partial(np.copyto, out, a), 1),
        }
        yield row(f"{name}, 16 M", calls, rounds)

    def build_chain(g):
        a, b = g.state("a", (n,)), g.state("b", (n,))
        g.output("y", aicf.sin(a) * b + aicf.exp(-a * a))
        return {"a": (n,), "b": (n,)}

    calls = {"aicf": replay(build_chain), "torch.compile": (lambda: compiled(ta, tb, tout), 1)}
    yield row("sin(a)*b + exp(-a*a), 16 M", calls, rounds)


def sums(rounds, threads):
    """Sums over one axis of 4096 x 4096 floats."""
    import torch

    (a,), (ta,) = randoms((4096, 4096))
    out = torch.empty(4096)
    for axis, where in ((1, "last"), (0, "first")):

        def build(g, axis=axis):
            g.output("y", aicf.sum(g.state("a", a.shape), axis=axis))
            return {"a": a.shape}

        calls = {
            "aicf": replay(build),
            "torch": (functools.partial(torch.sum, ta, axis, out=out), 1),
            "numpy": (functools.partial(np.sum, a, axis, out=out.numpy()), 1),
        }
        yield row(f"sum over the {where} axis", calls, rounds)


def rows(rounds, threads):
    """Ops on rows with pointwise ops before and after: in one launch, and each by itself."""
    import torch

    def softmax(g, shape):
        g.output("y", aicf.softmax(g.state("a", shape) * 0.125 + g.state("b", shape)))
        return {"a": shape, "b": shape}

    def layer_norm(g, shape):
        x, scale = g.state("x", shape), g.param("scale", shape[1:], init=aicf.init.ones())
        shift = g.param("shift", shape[1:])
        y = aicf.layer_norm(x, shape[1], scale, shift)
        g.output("y", y)
        for i, d in enumerate(g.backward(y, [x, scale, shift], grad=g.state("dy", shape)).values()):
            g.output(f"d{i}", d)
        return {"x": shape, "dy": shape}

    without = tuple(name for name in _core.pass_names() if name != "rows")
    for shape in ((64, 10), (512, 512), (4096, 4096)):
        _, (a, b) = randoms(shape, shape)
        calls = {
            "aicf": replay(functools.partial(softmax, shape=shape)),
            "aicf without": replay(functools.partial(softmax, shape=shape), passes=without),
            "torch": (lambda a=a, b=b: torch.softmax(a * 0.125 + b, 1), 1),
        }
        yield row(f"softmax(a*s + b) {shape[0]}x{shape[1]}", calls, rounds)
    for shape in ((512, 256), (4096, 4096)):
        calls = {
            "aicf": replay(functools.partial(layer_norm, shape=shape)),
            "aicf without": replay(functools.partial(layer_norm, shape=shape), passes=without),
        }
        yield row(f"layer norm and gradients {shape[0]}x{shape[1]}", calls, rounds)


def adam(rounds, threads):
    """Adam on 16 M params: 4 arrays read, 3 written; the copy moves as many bytes."""
    import torch

    n = 16 * MILLION

    def build(g):
        p = g.param("p", (n,))
        g.update({p: g.state("grad", (n,))}, aicf.optim.Adam(lr=1e-3))
        return {"grad": (n,)}

    (grad,), (p,) = randoms(n)
    p = p.clone().requires_grad_()
    p.grad = torch.from_numpy(grad)
    optimizer = torch.optim.Adam([p], lr=1e-3, fused=True)
    source, target = np.ones(n * 7 // 2, np.float32), np.empty(n * 7 // 2, np.float32)
    calls = {
        "aicf": replay(build),
        "copy": (functools.partial(np.copyto, target, source), 1),
        "torch fused": (optimizer.step, 1),
    }
    yield row("Adam, 16 M", calls, rounds)


def transformer(rounds, threads):
    """The training step of examples/char_transformer.py."""
    from peer_transformer import ours, theirs

    step, feed = ours()
    calls = {
        "aicf call": (functools.partial(step, **feed), 1),
        "torch.compile": (theirs(feed, compiled=True), 1),
        "torch": (theirs(feed, compiled=False), 1),
    }
    yield row("character transformer", calls, rounds)


@contextlib.contextmanager
def busy(count):
    """Keeps so many processes at work elsewhere on these cores."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def long_reading(call):
    """Seconds of a call over many time slices: who has slept may run through the first ones."""
    end = time.perf_counter() + LONG / 4
    while time.perf_counter() < end:
        call()
    return reading(call, max(1, int(LONG / reading(call, 10))))


def scaling(rounds, threads):
    """The large network with 1 thread and with all, and with all while the cores are busy.

    One thread beside one busy process shows what a program loses that waits for nobody.
    """
    call, _, _ = mlp.PEERS["aicf call"](LARGE)

    def limited(count):
        _core.set_num_threads(count)
        call()

    calls = {
        f"aicf {threads} threads": (functools.partial(limited, threads), 1),
        "aicf 1 thread": (functools.partial(limited, 1), 1),
    }
    if threads > 1:
        yield row(f"{LARGE}, scaling", calls, rounds)
    peers = {"aicf": functools.partial(limited, threads), "jax": mlp.PEERS["jax jit"](LARGE)[0]}
    busy_taken, taken = {"aicf": [], "jax": []}, {"aicf": [], "aicf, cores busy": []}
    for turn in range(rounds):
        taken["aicf"].append(long_reading(peers["aicf"]))
        with busy(threads):
            for name in list(peers)[:: 1 if turn % 2 else -1]:
                busy_taken[name].append(long_reading(peers[name]))
    taken["aicf, cores busy"] = busy_taken["aicf"]
    yield summary(f"{LARGE}, alone and beside {threads} busy processes", taken)
    yield summary(f"{LARGE}, beside {threads} busy processes", busy_taken)


SECTIONS = {
    f.__name__: f for f in (small, large, gemm, pointwise, sums, rows, adam, transformer, scaling)
}


# ---- the table ----------------------------------------------------------------------------------


def measure(section, rounds, threads):
    import torch

    torch.set_num_threads(threads)
    return [r | {"threads": threads} for r in SECTIONS[section](rounds, threads)]


def show(result):
    ours, *peers = result["us"]
    print(f"{result['case']}, {result['threads']} thr: {ours} {result['us'][ours]:.2f} us")
    for name in peers:
        middle, low, high = result["ratio"][name]
        taken = result["us"][name]
        print(f"    {name:26}{taken:12.2f} us   x {middle:.2f} [{low:.2f} .. {high:.2f}]")
    sys.stdout.flush()


def cpu_name():
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sections", nargs="*", help=f"some of {', '.join(SECTIONS)}; default all")
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if unknown := set(args.sections) - set(SECTIONS):
        parser.error(f"no section {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    cores, rows = sorted(os.sched_getaffinity(0)), []
    for threads in args.threads:
        os.sched_setaffinity(0, cores[:threads])
        for name in ("OMP", "OPENBLAS", "MKL", "AICF"):
            os.environ[f"{name}_NUM_THREADS"] = str(threads)
        for section in args.sections or SECTIONS:
            fresh = multiprocessing.get_context("spawn")
            with concurrent.futures.ProcessPoolExecutor(1, fresh) as process:
                found = process.submit(measure, section, args.rounds, threads).result()
            for result in found:
                show(result)
            rows += [{"section": section} | result for result in found]
    if args.json:
        about = {
            "command": " ".join(["python", *sys.argv]),
            "date": datetime.date.today().isoformat(),
            "cpu": cpu_name(),
            "cores": len(cores),
            "kernels": _core.cpu_isa(),
            "versions": versions(),
            "rounds": args.rounds,
        }
        args.json.write_text(json.dumps(about | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
