"""A small network and what trains it, for tests of aicf.function."""

import aicf
import numpy as np

CPU = {"device": "cpu"}


def network(seed=0):
    nn = aicf.nn
    nn.seed(seed)
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))


def trainer(model, lr=1e-2, **options):
    @aicf.function(**CPU, **options)
    def train(x, t):
        loss = aicf.mse_loss(model(x), t)
        aicf.minimize(loss, aicf.optim.Adam(lr=lr))
        return loss

    return train


def batch(rows=8, seed=0):
    rng = np.random.default_rng([seed, rows])
    x = rng.standard_normal((rows, 4), np.float32)
    return x, x.sum(axis=1, keepdims=True)
