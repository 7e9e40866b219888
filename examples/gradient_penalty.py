"""A critic of points on a circle against noise, its slope held near 1 (WGAN-GP, Gulrajani 2017)."""

import aicf
import numpy as np

ROWS, WIDTH = 64, 32


def critic(params, x):
    (w1, b1), (w2, b2), (w3, b3) = params
    h = aicf.leaky_relu(aicf.linear(x, w1, b1), 0.2)
    return aicf.linear(aicf.tanh(aicf.linear(h, w2, b2)), w3, b3)


def train_graph():
    g = aicf.Graph("critic")
    sizes = [(WIDTH, 2), (WIDTH, WIDTH), (1, WIDTH)]
    params = [(g.param(f"{i}.W", s), g.param(f"{i}.b", s[:1])) for i, s in enumerate(sizes)]
    real, made = g.input("real", (ROWS, 2)), g.input("made", (ROWS, 2))
    share = g.input("share", (ROWS, 1))
    mixed = real * share + made * (1.0 - share)
    slope = aicf.grad(aicf.sum(critic(params, mixed)), mixed)
    norm = aicf.sqrt(aicf.sum(slope * slope, 1) + 1e-12)
    penalty = aicf.mean((norm - 1.0) ** 2.0)
    loss = aicf.mean(critic(params, made)) - aicf.mean(critic(params, real)) + 10.0 * penalty
    g.minimize(loss, aicf.optim.Adam(lr=1e-3, betas=(0.5, 0.9)))
    g.output("loss", loss)
    return g


def batch(rng):
    angle = rng.uniform(0, 2 * np.pi, (ROWS, 1))
    real, made = np.hstack([np.cos(angle), np.sin(angle)]), rng.standard_normal((ROWS, 2))
    values = {"real": real, "made": made, "share": rng.random((ROWS, 1))}
    return {name: array.astype(np.float32) for name, array in values.items()}


if __name__ == "__main__":
    step, rng = train_graph().compile(), np.random.default_rng(0)
    print([round(float(step(**batch(rng))["loss"]), 3) for _ in range(300)][::30])
