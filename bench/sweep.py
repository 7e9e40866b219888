"""The search of examples/sweep.py by aicf, PyTorch and JAX: seconds for the whole job.

    python bench/sweep.py [--rates 32] [--steps 2000] [--device cpu] [--rounds 5] [--json FILE]

Every one draws its own start, trains one net of equal shape for each rate on the same data with
Adam, and compiles within the time taken but for the first round, which is shown apart as `cold`.
PyTorch's compiled step holds loss and gradients, its fused Adam follows; on a GPU its step is one
CUDA graph. JAX scans over the steps of a training.
"""

import argparse
import datetime
import json
import statistics
import sys
import time
from pathlib import Path

import aicf
import numpy as np
from aicf import _core

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


def by_torch(rates, x, t, device, compiled):
    import torch

    xs, ts = torch.from_numpy(x).to(device), torch.from_numpy(t).to(device)
    torch.manual_seed(0)
    nets = torch.nn
    model = nets.Sequential(
        *(nets.Linear(3, sweep.WIDTH), nets.Tanh(), nets.Linear(sweep.WIDTH, sweep.WIDTH)),
        *(nets.Tanh(), nets.Linear(sweep.WIDTH, 2)),
    ).to(device)
    start = {name: value.clone() for name, value in model.state_dict().items()}

    def loss_of(a, b):
        return nets.functional.mse_loss(model(a), b)

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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rates", type=int, default=32)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    x, t = sweep.pendulum(options.steps, seed=0)
    rates = np.geomspace(1e-4, 0.3, options.rates).tolist()
    if options.device == "cpu":
        import torch

        torch.set_num_threads(1)
    jobs = {
        "aicf": by_aicf(rates, x, t, options.device),
        "JAX, scan": by_jax(rates, x, t, options.device),
        "PyTorch, compiled": by_torch(rates, x, t, options.device, True),
        "PyTorch": by_torch(rates, x, t, options.device, False),
    }
    taken, best = {name: [] for name in jobs}, {}
    for _ in range(options.rounds + 1):
        for name, job in jobs.items():
            begun = time.perf_counter()
            found = job()
            taken[name].append(time.perf_counter() - begun)
            best[name] = rates[int(np.argmin(found))]
    rows = []
    for name, (cold, *warm) in taken.items():
        low, middle, high = statistics.quantiles(warm, n=4)
        us = 1e6 * middle / options.rates / options.steps
        rows.append(
            {"name": name, "s": middle, "iqr_s": high - low, "cold_s": cold, "us": us}
            | {"best": best[name]}
        )
        print(
            f"{name:18} {middle:8.3f} s ± {high - low:.3f}, cold {cold:.3f}; {us:8.2f} µs a step; "
            f"best rate {best[name]:.5f}"
        )
    if options.json:
        info = _core.cuda_info()["devices"]
        about = {
            "command": f"python bench/sweep.py --device {options.device}",
            "device": info[0]["name"] if options.device == "cuda" else "one core of a CPU",
            "kernels": _core.cpu_isa(),
            "date": datetime.date.today().isoformat(),
            "rates": options.rates,
            "steps": options.steps,
            "rounds": options.rounds,
            "versions": {"aicf": aicf.__version__},
        }
        options.json.write_text(json.dumps(about | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
