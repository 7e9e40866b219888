"""Whole training steps on a GPU, ours and the peers', timed in one run.

    python bench/peers_gpu.py --out bench/results
    python bench/peers_gpu.py --sweep --out bench/results

Every row starts from random data of the same shape: forward, loss, backward, Adam. All of a
net take turns: a round times each of them, some steps with a wait at both ends. A row's figure is
the median over nine rounds of the mean wall time of a step.
"""

import argparse
import itertools
import json
import operator
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import aicf
import numpy as np
from gpu import describe_device

CONFIGS = {
    "8-8-8 b64 mse": ((8, 8, 8), 64, "mse"),
    "784-512-512-10 b128 ce": ((784, 512, 512, 10), 128, "ce"),
}
# Nets of three layers and Adam, by width and batch; and the one above.
WIDTHS, BATCHES = (32, 64, 128, 256, 512, 1024), (16, 128, 1024)
SWEEP = [((width,) * 3 + (10,), rows) for width in WIDTHS for rows in BATCHES]
SWEEP.append(((784, 512, 512, 10), 128))
REPEAT = 9


class Row(NamedTuple):
    """What is timed: one call takes `steps` steps, a reading has `calls` calls."""

    call: Callable
    wait: Callable
    steps: int = 1
    calls: int = 200


def take_turns(rows):
    """{name: microseconds a step in each round}."""
    taken = {name: [] for name in rows}
    for row in rows.values():
        for _ in range(20):
            row.call()
        row.wait()
    for turn in range(REPEAT):
        for name in list(rows)[:: -1 if turn % 2 else 1]:
            call, wait, steps, calls = rows[name]
            call()
            wait()
            start = time.perf_counter()
            for _ in range(calls):
                call()
            wait()
            taken[name].append((time.perf_counter() - start) / (calls * steps) * 1e6)
    return taken


def figures(us):
    """The median and the interquartile range."""
    low, middle, high = statistics.quantiles(us, n=4)
    return {"us": middle, "iqr_us": high - low}


def batch(config):
    sizes, rows, loss = CONFIGS[config]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, sizes[0]), dtype=np.float32)
    if loss == "mse":
        return x, rng.standard_normal((rows, sizes[-1]), dtype=np.float32)
    return x, rng.integers(0, sizes[-1], rows)


def graph_of(config):
    sizes, _, loss_kind = CONFIGS[config]
    x, y = batch(config)
    g = aicf.Graph("step")
    h, target = g.input("x", x.shape), g.input("y", y.shape, str(y.dtype))
    for i, size in enumerate(sizes[1:]):
        h = g.dense(str(i), h, size)
        h = aicf.relu(h) if i + 2 < len(sizes) else h
    loss = (aicf.mse_loss if loss_kind == "mse" else aicf.cross_entropy)(h, target)
    g.minimize(loss, aicf.optim.Adam())
    g.output("loss", loss)
    return g


def ours(config):
    x, y = batch(config)
    step = graph_of(config).compile(device="cuda")
    step(x=x, y=y)
    yield "aicf replay(100)", Row(lambda: step.replay(100), step.synchronize, 100, 10)
    yield "aicf replay()", Row(step.replay, step.synchronize)
    yield "aicf call with host arrays", Row(lambda: step(x=x, y=y), step.synchronize)


def torch_rows(config):
    import torch

    sizes, _, loss_kind = CONFIGS[config]
    x, y = (torch.from_numpy(a).cuda() for a in batch(config))

    def build(**options):
        torch.manual_seed(0)
        layers = []
        for i, (a, b) in enumerate(itertools.pairwise(sizes)):
            layers += [torch.nn.ReLU()] * (i > 0) + [torch.nn.Linear(a, b)]
        model = torch.nn.Sequential(*layers).cuda()
        optimizer = torch.optim.Adam(model.parameters(), **options)
        loss_of = getattr(
            torch.nn.functional, "mse_loss" if loss_kind == "mse" else "cross_entropy"
        )

        def step():
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        return step

    def graphed(step):
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(4):
                step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()

        def replay(captured=step):  # whose memory and compiled code the graph uses
            graph.replay()

        return replay

    wait = torch.cuda.synchronize
    yield "torch eager", Row(build(), wait)
    yield "torch eager, fused Adam", Row(build(fused=True), wait)
    yield (
        "torch whole-step CUDA graph, fused capturable Adam",
        Row(graphed(build(fused=True, capturable=True)), wait),
    )
    compiled = torch.compile(build(capturable=True))
    for _ in range(4):
        compiled()
    yield "torch compiled step in a CUDA graph", Row(graphed(compiled), wait)


def jax_rows(config, jit=True):
    import jax
    import jax.numpy as jnp

    sizes, _, loss_kind = CONFIGS[config]
    x, y = (jnp.asarray(a) for a in batch(config))
    rng = np.random.default_rng(1)
    params = [
        (jnp.asarray(rng.standard_normal((a, b), dtype=np.float32) * 0.1), jnp.zeros(b))
        for a, b in itertools.pairwise(sizes)
    ]
    zeros = jax.tree.map(jnp.zeros_like, params)

    def loss_of(params):
        h = x
        for i, (w, b) in enumerate(params):
            h = h @ w + b
            h = jnp.maximum(h, 0) if i + 2 < len(sizes) else h
        if loss_kind == "mse":
            return jnp.mean((h - y) ** 2)
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(h), y[:, None], 1))

    def step(state):
        params, m, v, t = state
        grads = jax.grad(loss_of)(params)
        t = t + 1
        m = jax.tree.map(lambda a, g: 0.9 * a + 0.1 * g, m, grads)
        v = jax.tree.map(lambda a, g: 0.999 * a + 0.001 * g * g, v, grads)
        scale = 1e-3 * jnp.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        params = jax.tree.map(lambda p, a, b: p - scale * a / (jnp.sqrt(b) + 1e-8), params, m, v)
        return params, m, v, t

    def runner(fn, state):
        held = [state]

        def run():
            held[0] = fn(held[0])

        return run, lambda: jax.block_until_ready(held[0])

    state = jax.tree.map(jnp.copy, (params, zeros, zeros, jnp.zeros(())))
    if jit:
        yield "jax jit", Row(*runner(jax.jit(step, donate_argnums=0), state))
    many = jax.jit(
        lambda s: jax.lax.scan(lambda c, _: (step(c), None), s, None, length=100)[0],
        donate_argnums=0,
    )
    state = jax.tree.map(jnp.copy, (params, zeros, zeros, jnp.zeros(())))
    yield "jax scan(100)", Row(*runner(many, state), 100, 10)


def sweep(out):
    """replay(100) in fp32 and tf32 beside JAX's scan of 100 steps, which multiplies in tf32."""
    record = describe_device() | {"command": "python bench/peers_gpu.py --sweep", "rows": []}
    for sizes, rows in SWEEP:
        name = f"{'-'.join(map(str, sizes))} b{rows}"
        CONFIGS[name] = (sizes, rows, "ce")
        x, y = batch(name)
        turns = {}
        for math in ("fp32", "tf32"):
            step = graph_of(name).compile(device="cuda", math=math)
            step(x=x, y=y)
            turns[math] = Row(partial(step.replay, 100), step.synchronize, 100, 5)
        *_, (_, turns["jax scan"]) = jax_rows(name, jit=False)
        taken = take_turns(turns)
        row = {"config": name} | {key: figures(us) for key, us in taken.items()}
        row["ratio"] = {
            math: statistics.median(map(operator.truediv, taken["jax scan"], taken[math]))
            for math in ("fp32", "tf32")
        }
        record["rows"].append(row)
    record["rows"].sort(key=lambda row: row["ratio"]["fp32"])
    for row in record["rows"]:
        times = "  ".join(f"{key} {row[key]['us']:.2f} us" for key in ("fp32", "tf32", "jax scan"))
        ratios = "  ".join(f"{ratio:.2f}" for ratio in row["ratio"].values())
        print(f"{row['config']:28} {times}  ratio {ratios}", flush=True)
    out.mkdir(parents=True, exist_ok=True)
    (out / f"sweep_steps_{record['short']}.json").write_text(json.dumps(record, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="bench/results")
    parser.add_argument("--sweep", action="store_true", help="widths and batches beside JAX's scan")
    args = parser.parse_args()
    if args.sweep:
        return sweep(Path(args.out))
    record = describe_device() | {"command": "python bench/peers_gpu.py", "rows": []}
    for config in CONFIGS:
        rows = {}
        for part in (ours, torch_rows, jax_rows):
            try:
                rows |= part(config)
            except Exception as error:  # a peer that is not here, or fails, is a row that says so
                if part is ours:
                    raise
                record["rows"].append({"config": config, "row": part.__name__, "error": str(error)})
                print(f"{config}: {part.__name__}: {error}", flush=True)
        for name, us in take_turns(rows).items():
            record["rows"].append({"config": config, "row": name, **figures(us)})
            print(f"{config}: {name}: {statistics.median(us):.2f} us", flush=True)
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / f"train_step_{record['short']}.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
