"""Loops on a GPU: in one launch of one block, as launches of their turns, and the peers'.

    python bench/loops_gpu.py [--json FILE] [--only TEXT] [--no-peers]

Microseconds a step, medians of 7 rounds in which the forms take turns; a step is a replay, forward
or forward, backward and Adam. The peers do the same work on the same shapes: JAX by lax.scan under
jit, PyTorch by torch.nn.LSTM (cuDNN) or GRU, or for a recurrence by torch.nn.RNN, in a CUDA graph
where it can be captured.
"""

import argparse
import datetime
import json
import os
import statistics
import time
from pathlib import Path

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import aicf
import numpy as np
from aicf import _core

ROUNDS = 7
APART = tuple(name for name in _core.pass_names() if name != "loops")
BATCH = 16
# kind, width, turns, whether it trains
CASES = [
    (kind, width, turns, train)
    for kind, width, turns in [
        ("rnn", 32, 100),
        ("rnn", 32, 1000),
        ("rnn", 128, 100),
        ("rnn", 128, 1000),
        ("lstm", 32, 500),
        ("lstm", 64, 500),
        ("gru", 64, 500),
    ]
    for train in (False, True)
]


def arrays(kind, width, turns):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((turns, BATCH, width), dtype=np.float32)
    return x, np.zeros((BATCH, width), np.float32)


def ours(kind, width, turns, train, passes):
    g = aicf.Graph(kind)
    x = g.input("x", (turns, BATCH, width))
    if kind == "rnn":
        w = g.param("w", (width, width), init=aicf.init.xavier_uniform((width, width)))
        start = g.input("h", (BATCH, width))
        _, ys = aicf.scan(lambda h, row: 2 * (aicf.tanh(aicf.linear(h, w) + row),), start, x)
    else:
        ys, _ = {"lstm": aicf.nn.LSTM, "gru": aicf.nn.GRU}[kind](width, width)(x)
    loss = aicf.mean(ys * ys)
    if train:
        g.minimize(loss, aicf.optim.Adam(lr=1e-3))
        g.output("loss", loss)
    else:
        g.output("ys", ys)
    step = g.compile(device="cuda", passes=passes, seed=1)
    rows, h = arrays(kind, width, turns)
    step(x=rows, **({"h": h} if kind == "rnn" else {}))
    return step


def by_jax(kind, width, turns, train):
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_default_matmul_precision", "highest")
    gates = {"rnn": 1, "lstm": 4, "gru": 3}[kind]
    rows, h = arrays(kind, width, turns)
    rng = np.random.default_rng(1)
    scale = width**-0.5
    params = {
        "u": jnp.asarray(rng.uniform(-scale, scale, (width, gates * width)), jnp.float32),
        "w": jnp.asarray(rng.uniform(-scale, scale, (width, gates * width)), jnp.float32),
        "b": jnp.zeros(gates * width, jnp.float32),
    }

    def outputs(p, x):
        if kind == "rnn":

            def turn(h, row):
                h = jnp.tanh(h @ p["w"] + row)
                return h, h

            return jax.lax.scan(turn, jnp.asarray(h), x)[1]
        xs = x @ p["u"] + p["b"]
        if kind == "lstm":

            def turn(carry, row):
                h, c = carry
                i, f, o, n = jnp.split(h @ p["w"] + row, 4, axis=-1)
                c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(n)
                h = jax.nn.sigmoid(o) * jnp.tanh(c)
                return (h, c), h

            return jax.lax.scan(turn, (jnp.asarray(h), jnp.asarray(h)), xs)[1]

        def turn(h, row):
            z, r, n = jnp.split(h @ p["w"], 3, axis=-1)
            a, b, c = jnp.split(row, 3, axis=-1)
            z, r = jax.nn.sigmoid(z + a), jax.nn.sigmoid(r + b)
            h = (1 - z) * jnp.tanh(c + r * n) + z * h
            return h, h

        return jax.lax.scan(turn, jnp.asarray(h), xs)[1]

    x = jax.device_put(rows)
    if not train:
        forward = jax.jit(outputs)
        forward(params, x).block_until_ready()
        return lambda n: [forward(params, x) for _ in range(n)][-1].block_until_ready()

    def step(state, x):
        p, m, v, t = state
        grads = jax.grad(lambda p: jnp.mean(outputs(p, x) ** 2))(p)
        m = jax.tree.map(lambda m, d: 0.9 * m + 0.1 * d, m, grads)
        v = jax.tree.map(lambda v, d: 0.999 * v + 0.001 * d * d, v, grads)
        t = t + 1
        p = jax.tree.map(
            lambda p, m, v: p - 1e-3 * m / (1 - 0.9**t) / (jnp.sqrt(v / (1 - 0.999**t)) + 1e-8),
            p,
            m,
            v,
        )
        return p, m, v, t

    first, second = (jax.tree.map(jnp.zeros_like, params) for _ in range(2))
    held = [(params, first, second, jnp.float32(0))]
    run = jax.jit(step, donate_argnums=0)

    def go(n):
        for _ in range(n):
            held[0] = run(held[0], x)
        held[0][3].block_until_ready()

    go(2)
    return go


def by_torch(kind, width, turns, train):
    import torch

    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    net = {"rnn": torch.nn.RNN, "lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[kind](width, width)
    net = net.cuda()
    x = torch.tensor(arrays(kind, width, turns)[0], device="cuda")
    adam = torch.optim.Adam(net.parameters(), lr=1e-3, capturable=True, fused=True)

    def step():
        if not train:
            with torch.no_grad():
                net(x)
            return
        adam.zero_grad(set_to_none=True)
        net(x)[0].square().mean().backward()
        adam.step()

    aside = torch.cuda.Stream()
    with torch.cuda.stream(aside):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    run = step
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        run = graph.replay
    except RuntimeError as error:
        print(f"  PyTorch {kind}: not captured: {error}")
        torch.cuda.synchronize()

    def go(n):
        for _ in range(n):
            run()
        torch.cuda.synchronize()

    go(2)
    return go


def by_us(step):
    def go(n):
        for _ in range(n):
            step.replay(1)
        step.synchronize()

    go(2)
    return go


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--no-peers", action="store_true")
    options = parser.parse_args()
    rows = []
    for kind, width, turns, train in CASES:
        what = f"{kind} {width} b{BATCH} x {turns}" + (" train" if train else "")
        if options.only not in what:
            continue
        forms, ops = {}, {}
        for name, passes in (("block", "default"), ("launches", APART)):
            start = time.perf_counter()
            step = ours(kind, width, turns, train, passes)
            ops[name] = sorted({op["op"] for op in step.plan.ops if "loop" in op["op"]})
            ops[name + " seconds"] = round(time.perf_counter() - start, 1)
            forms[name] = by_us(step)
        if not options.no_peers:
            for name, peer in (("jax", by_jax), ("torch", by_torch)):
                try:
                    forms[name] = peer(kind, width, turns, train)
                except ImportError as error:
                    print(f"  {name}: {error}")
        taken = {}
        for turn in range(ROUNDS + 1):
            for name, go in forms.items():
                count = 10 if turns > 100 else 50
                start = time.perf_counter()
                go(count)
                us = (time.perf_counter() - start) / count * 1e6
                if turn:
                    taken.setdefault(name, []).append(us)
        row = {"case": what, "turns": turns, "ops": ops}
        for name, figures in taken.items():
            low, middle, high = statistics.quantiles(figures, n=4)
            row[name] = {"us": middle, "iqr_us": high - low}
        rows.append(row)
        words = (f"{name} {row[name]['us']:.0f} ({row[name]['us'] / turns:.2f})" for name in taken)
        print(f"{what:28}", *words, ops, flush=True)
    if options.json:
        record = {
            "command": "python bench/loops_gpu.py",
            "device": _core.cuda_info()["devices"][0]["name"],
            "date": str(datetime.date.today()),
            "rows": rows,
        }
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
