"""Sines that are learnt from ten points after one step each (MAML, Finn et al., 2017)."""

import aicf
import numpy as np

TASKS, POINTS, WIDTH, RATE = 8, 10, 32, 0.1


def model(params, x):
    """All tasks at once; each has params of its own, [tasks, ...]."""
    w1, b1, w2, b2 = params
    return aicf.tanh(x * w1 + b1) @ w2 + b2


def train_graph():
    g = aicf.Graph("maml")
    shapes = {"w1": (1, WIDTH), "b1": (1, WIDTH), "w2": (WIDTH, 1), "b2": (1, 1)}
    start = [g.param(name, shape) for name, shape in shapes.items()]
    known_x, known_y = (g.input(f"known_{axis}", (TASKS, POINTS, 1)) for axis in "xy")
    asked_x, asked_y = (g.input(f"asked_{axis}", (TASKS, POINTS, 1)) for axis in "xy")
    own = [aicf.broadcast_to(p, (TASKS, *p.shape)) for p in start]
    error = aicf.mse_loss(model(own, known_x), known_y) * TASKS  # of each task its own mean
    learnt = [p - RATE * d for p, d in zip(own, aicf.grad(error, own), strict=True)]
    loss = aicf.mse_loss(model(learnt, asked_x), asked_y)
    g.minimize(loss, aicf.optim.Adam(lr=1e-2))  # through the step above
    g.output("loss", loss)
    return g


def batch(rng):
    size, shift = rng.uniform(0.5, 2, (TASKS, 1, 1)), rng.uniform(0, np.pi, (TASKS, 1, 1))
    x = rng.uniform(-3, 3, (2, TASKS, POINTS, 1))
    (known_x, asked_x), (known_y, asked_y) = x, size * np.sin(x + shift)
    found = {"known_x": known_x, "known_y": known_y, "asked_x": asked_x, "asked_y": asked_y}
    return {name: array.astype(np.float32) for name, array in found.items()}


if __name__ == "__main__":
    step, rng = train_graph().compile(), np.random.default_rng(0)
    print([round(float(step(**batch(rng))["loss"]), 3) for _ in range(2000)][::200])
