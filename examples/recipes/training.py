"""Accumulation, clipping, groups with and without decay, an average of params and a schedule."""

import aicf
import numpy as np
from aicf import nn, optim


def main(updates=150, parts=4):
    rng = np.random.default_rng(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))

    @aicf.function
    def train(x, y, last):  # two steps: one adds, one updates as well
        g, grads = (loss := aicf.mse_loss(model(x), y)).graph, {}
        for p, grad in g.backward(loss * (1 / parts)).items():
            grads[p] = (total := g.state(f"sum.{p.name}", p.shape)) + grad
            g.assign(total, grads[p] * 0.0 if last else grads[p])
        if last:
            rate = optim.warmup_cosine(g.step_count("bias"), 3e-2, warmup=10, total=updates)
            clipped = optim.clip_grad_norm(grads, 1.0)
            for name, decay, rank in (("weight", 1e-2, 2), ("bias", 0.0, 1)):
                group = {p: d for p, d in clipped.items() if p.ndim == rank}
                g.update(group, optim.AdamW(rate, weight_decay=decay), name=name)
            g.ema(0.95)
        return loss

    for i in range(updates * parts):
        x = rng.standard_normal((16, 8), np.float32)
        loss = train(x, x.sum(1, keepdims=True), i % parts == parts - 1)
    return float(loss), int(train.states["weight.step"]), train.averages()["2.bias"].shape
