"""Searches for a learning rate: one step is compiled, and trains a pendulum's model once a rate.

    python examples/sweep.py [--rates 32] [--steps 2000] [--device cpu]

A pendulum is simulated; the net learns how its angle and speed change within 0.05 s.
"""

import argparse
import time

import aicf
import numpy as np

BATCH, WIDTH = 64, 16


def pendulum(steps, seed):
    """Angle, speed and torque of random states, and what becomes of the first two in 0.05 s."""
    rng = np.random.default_rng(seed)
    x = rng.uniform((-np.pi, -4, -1), (np.pi, 4, 1), (steps, BATCH, 3))
    angle, speed, torque = np.moveaxis(x, -1, 0).copy()
    for _ in range(10):
        speed += 0.005 * (torque - 9.81 * np.sin(angle) - 0.1 * speed)
        angle += 0.005 * speed
    t = np.stack([angle, speed], -1) - x[..., :2]
    return x.astype(np.float32), t.astype(np.float32)


def graph():
    g = aicf.Graph("pendulum")
    h = g.input("x", (BATCH, 3))
    for i in range(2):
        h = aicf.tanh(g.dense(f"{i}", h, WIDTH))
    loss = aicf.mse_loss(g.dense("out", h, 2), g.input("t", (BATCH, 2)))
    g.output("loss", loss, keep=100)
    g.minimize(loss, aicf.optim.Adam(lr=1e-3))
    return g


def search(step, rates, x, t):
    """The mean of the last 100 losses, by rate; every training begins alike."""
    start, found = step.state_dict(), {}
    for rate in rates:
        step.load_state_dict(start)
        step.set("opt.lr", rate)
        found[rate] = float(step.run_many(x=x, t=t)["loss"].numpy().mean())
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rates", type=int, default=32)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    x, t = pendulum(options.steps, seed=0)
    begun = time.perf_counter()
    step = graph().compile(device=options.device, seed=0)
    found = search(step, np.geomspace(1e-4, 0.3, options.rates).tolist(), x, t)
    seconds = time.perf_counter() - begun
    for rate, loss in found.items():
        print(f"rate {rate:8.5f}  loss {loss:.6f}")
    best = min(found, key=found.get)
    each = 1e6 * seconds / options.rates / options.steps
    print(f"best rate {best:.5f}; {options.rates} trainings of {options.steps} steps took")
    print(f"{seconds:.2f} s, compiling included: {each:.2f} µs a step")
    return found


if __name__ == "__main__":
    main()
