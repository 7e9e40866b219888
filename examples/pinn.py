"""u'' = -pi^2 sin(pi x), u(-1) = u(1) = 0, by a network (a PINN, Raissi et al., 2019)."""

import aicf
import numpy as np

POINTS, WIDTH = 64, 24


def network(params, x):
    for weight, bias in params[:-1]:
        x = aicf.tanh(aicf.linear(x, weight, bias))
    return aicf.linear(x, *params[-1])


def train_graph():
    g = aicf.Graph("pinn")
    sizes = [(WIDTH, 1), (WIDTH, WIDTH), (1, WIDTH)]
    params = [(g.param(f"{i}.W", s), g.param(f"{i}.b", s[:1])) for i, s in enumerate(sizes)]
    x = g.input("x", (POINTS, 1))
    u = network(params, x)
    bend = aicf.grad(aicf.sum(aicf.grad(aicf.sum(u), x)), x)
    rest = bend + np.pi**2 * aicf.sin(np.pi * x)
    ends = network(params, g.constant([[-1.0], [1.0]]))
    loss = aicf.mean(rest * rest) + 10.0 * aicf.mean(ends * ends)
    g.minimize(loss, aicf.optim.Adam(lr=3e-3))
    g.output("loss", loss)
    g.output("u", u)
    return g


def batch(rng):
    return {"x": rng.uniform(-1, 1, (POINTS, 1)).astype(np.float32)}


if __name__ == "__main__":
    step, rng = train_graph().compile(), np.random.default_rng(0)
    for _ in range(3000):
        out = step(**(values := batch(rng)))
    error = np.abs(out["u"].numpy() - np.sin(np.pi * values["x"])).max()
    print(f"loss {float(out['loss']):.4f}, largest error {error:.4f}")
