"""The search of examples/sweep.py by aicf, PyTorch and JAX: seconds for the whole job.

    python bench/sweep.py [--rates 32] [--steps 2000] [--device cpu] [--rounds 5] [--json FILE]
    python bench/sweep.py --draw FILE.json FILE.svg

Every one draws its own start, trains one net of equal shape for each rate on the same data with
Adam, and compiles within the time taken but for the first round, which is shown apart as `cold`.
On a CPU PyTorch's compiled step holds loss and gradients, its fused Adam follows; on a GPU both are
in a CUDA graph, replayed once a step. JAX scans over the steps of a training. A ratio is a peer's
seconds over aicf's of the same round. `taskset -c 0` before the command gives all of them one core.
"""

import argparse
import datetime
import json
import os
import statistics
import sys
import time
from pathlib import Path

import numpy as np
from aicf import _core
from conftest import versions
from cpu import cpu_name

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
import sweep  # noqa: E402

BETAS, EPS = (0.9, 0.999), 1e-8


def by_aicf(rates, x, t, device):
    held = {}

    def job():
        if not held:
            held["step"] = sweep.graph().compile(device=device, seed=0)
            held["start"] = held["step"].state_dict()
        held["step"].load_state_dict(held["start"])
        return list(sweep.search(held["step"], rates, x, t).values())

    return job


def torch_net():
    from torch import nn

    return nn.Sequential(
        *(nn.Linear(3, sweep.WIDTH), nn.Tanh(), nn.Linear(sweep.WIDTH, sweep.WIDTH)),
        *(nn.Tanh(), nn.Linear(sweep.WIDTH, 2)),
    )


def by_torch(rates, x, t, device, compiled):
    import torch

    xs, ts = torch.from_numpy(x).to(device), torch.from_numpy(t).to(device)
    torch.manual_seed(0)
    model = torch_net().to(device)
    start = {name: value.clone() for name, value in model.state_dict().items()}

    def loss_of(a, b):
        return torch.nn.functional.mse_loss(model(a), b)

    loss_of = torch.compile(loss_of) if compiled else loss_of

    def job():
        found = []
        for rate in rates:
            model.load_state_dict(start)
            rule = torch.optim.Adam(model.parameters(), rate, BETAS, EPS, fused=True)
            last = []
            for a, b in zip(xs, ts, strict=True):
                rule.zero_grad()
                loss = loss_of(a, b)
                loss.backward()
                rule.step()
                last = [*last[-99:], loss.detach()]
            found.append(torch.stack(last).mean().item())
        return found

    return job


def by_torch_graph(rates, x, t):
    """The compiled step and its fused Adam in one CUDA graph, which counts the steps itself."""
    import torch

    xs, ts = torch.from_numpy(x).cuda(), torch.from_numpy(t).cuda()
    held = {}

    def capture():
        torch.manual_seed(0)
        model = torch_net().cuda()
        loss_of = torch.compile(lambda a, b: torch.nn.functional.mse_loss(model(a), b))
        rate, n = torch.tensor(1e-3, device="cuda"), torch.zeros(1, dtype=torch.int64).cuda()
        options = {"betas": BETAS, "eps": EPS, "fused": True, "capturable": True}
        rule = torch.optim.Adam(model.parameters(), rate, **options)
        losses = torch.zeros(len(xs), device="cuda")

        def step():
            rule.zero_grad()
            loss = loss_of(xs.index_select(0, n)[0], ts.index_select(0, n)[0])
            loss.backward()
            rule.step()
            losses.index_copy_(0, n, loss.detach()[None])
            n.add_(1)

        start = [p.detach().clone() for p in model.parameters()]
        graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        rule.zero_grad()
        with torch.cuda.graph(graph):
            step()

        @torch.no_grad()
        def begin(with_rate):
            for p, value in zip(model.parameters(), start, strict=True):
                p.copy_(value)
            for moments in rule.state.values():
                for value in moments.values():
                    value.zero_()
            rate.fill_(with_rate)
            n.zero_()

        return graph, begin, losses

    def job():
        if not held:
            held["made"] = capture()
        graph, begin, losses = held["made"]
        found = []
        for rate in rates:
            begin(rate)
            for _ in range(len(xs)):
                graph.replay()
            found.append(losses[-100:].mean().item())
        return found

    return job


def by_jax(rates, x, t, device):
    import jax
    import jax.numpy as jnp

    xs, ts = jnp.asarray(x), jnp.asarray(t)
    sizes = (3, sweep.WIDTH, sweep.WIDTH, 2)
    rng = np.random.default_rng(0)
    start = [
        (jnp.asarray(rng.uniform(-1, 1, (i, o)) / np.sqrt(i), jnp.float32), jnp.zeros(o))
        for i, o in zip(sizes, sizes[1:], strict=False)
    ]

    def loss_of(params, a, b):
        for w, c in params[:-1]:
            a = jnp.tanh(a @ w + c)
        return ((a @ params[-1][0] + params[-1][1] - b) ** 2).mean()

    def one(carry, data, rate):
        params, m, v, n = carry
        loss, grads = jax.value_and_grad(loss_of)(params, *data)
        n = n + 1
        m = jax.tree.map(lambda s, d: BETAS[0] * s + (1 - BETAS[0]) * d, m, grads)
        v = jax.tree.map(lambda s, d: BETAS[1] * s + (1 - BETAS[1]) * d * d, v, grads)
        by, over = 1 - BETAS[0] ** n, 1 - BETAS[1] ** n
        params = jax.tree.map(
            lambda p, s, q: p - rate * (s / by) / (jnp.sqrt(q / over) + EPS), params, m, v
        )
        return (params, m, v, n), loss

    @jax.jit
    def training(rate):
        zeros = jax.tree.map(jnp.zeros_like, start)
        begin = (start, zeros, zeros, jnp.float32(0))
        _, losses = jax.lax.scan(lambda c, d: one(c, d, rate), begin, (xs, ts))
        return losses[-100:].mean()

    return lambda: [float(training(rate)) for rate in rates]


def picture(run):
    """The seconds of each as bars, whose lengths are logarithms, as an SVG."""
    rows, wide, left, line = run["rows"], 640, 150, 34
    low = 10 ** np.floor(np.log10(min(row["s"] for row in rows)))
    high = 10 ** np.ceil(np.log10(max(row["s"] for row in rows)))
    tall = line * len(rows) + 54
    parts = []

    def across(seconds):
        return round(left + (wide - left - 90) * np.log(seconds / low) / np.log(high / low), 1)

    def text(x, y, words, more=""):
        parts.append(f'<text x="{x}" y="{y}"{more}>{words}</text>')

    def bar(x, y, width, height, color):
        box = f'x="{x}" y="{y}" width="{width:g}" height="{height}"'
        parts.append(f'<rect {box} fill="{color}"/>')

    bar(0, 0, wide, tall, "#fff")
    text(10, 20, f"seconds for {run['rates']} trainings of {run['steps']:,} steps")
    seconds = low
    while seconds <= high * 1.001:
        parts.append(f'<path d="M{across(seconds)} 32V{tall - 20}" stroke="#ddd"/>')
        text(across(seconds), tall - 6, f"{seconds:g}", ' text-anchor="middle" font-size="11"')
        seconds *= 10
    for y, row in zip(range(36, tall, line), rows, strict=False):
        end = across(row["s"])
        bar(left, y, end - left, line - 12, "#d1495b" if row["name"] == "aicf" else "#8d99ae")
        text(left - 8, y + 16, row["name"], ' text-anchor="end"')
        text(end + 6, y + 16, f"{row['s']:.3g} s")
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {tall}" '
        'font-family="sans-serif" font-size="13" fill="#444">'
    )
    return "\n".join([head, *parts, "</svg>"]) + "\n"


def compare(options):
    """What the file of results says."""
    x, t = sweep.pendulum(options.steps, seed=0)
    rates = np.geomspace(1e-4, 0.3, options.rates).tolist()
    if options.device == "cpu":
        import torch

        torch.set_num_threads(1)
    jobs = {
        "aicf": by_aicf(rates, x, t, options.device),
        "JAX, scan": by_jax(rates, x, t, options.device),
    }
    if options.device == "cuda":
        jobs["PyTorch, graph"] = by_torch_graph(rates, x, t)
    else:
        jobs["PyTorch, compiled"] = by_torch(rates, x, t, options.device, True)
        jobs["PyTorch"] = by_torch(rates, x, t, options.device, False)
    taken, best = {name: [] for name in jobs}, {}
    for turn in range(options.rounds + 1):
        for name in list(jobs)[:: -1 if turn % 2 else 1]:
            begun = time.perf_counter()
            found = jobs[name]()
            taken[name].append(time.perf_counter() - begun)
            best[name] = rates[int(np.argmin(found))]
    rows = []
    for name, (cold, *warm) in taken.items():
        ratios = [theirs / ours for theirs, ours in zip(warm, taken["aicf"][1:], strict=True)]
        middle = statistics.median(warm)
        row = {
            "name": name,
            "s": middle,
            "cold_s": cold,
            "us": 1e6 * middle / options.rates / options.steps,
            "ratio": [statistics.median(ratios), min(ratios), max(ratios)],
            "best": best[name],
        }
        rows.append(row)
        print(
            f"{name:18} {middle:8.3f} s, cold {cold:.3f}; {row['us']:8.2f} µs a step; "
            f"{row['ratio'][0]:.2f} [{row['ratio'][1]:.2f} .. {row['ratio'][2]:.2f}] of aicf's; "
            f"best rate {best[name]:.5f}"
        )
    info = _core.cuda_info()["devices"]
    alone = len(os.sched_getaffinity(0)) == 1 and options.device == "cpu"
    return {
        "command": f"{'taskset -c 0 ' * alone}python bench/sweep.py --rates {options.rates} "
        f"--steps {options.steps} --device {options.device} --rounds {options.rounds}",
        "device": info[0]["name"] if options.device == "cuda" else f"{cpu_name()}, one core",
        "kernels": _core.cpu_isa(),
        "date": datetime.date.today().isoformat(),
        "rates": options.rates,
        "steps": options.steps,
        "rounds": options.rounds,
        "versions": versions(),
        "rows": rows,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rates", type=int, default=32)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--draw", type=Path, nargs=2, metavar=("JSON", "SVG"))
    options = parser.parse_args()
    if options.draw:
        source, target = options.draw
        target.write_text(picture(json.loads(source.read_text())))
        return
    run = compare(options)
    if options.json:
        options.json.write_text(json.dumps(run, indent=1) + "\n")


if __name__ == "__main__":
    main()
