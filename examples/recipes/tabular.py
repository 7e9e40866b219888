"""Regression on a table, with a short last batch, early stopping and the best params at the end."""

import aicf
import numpy as np
from aicf import nn


def main(patience=5):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((600, 6), np.float32)
    y = np.sin(x[:, :1]) * x[:, 1:2] + 0.1 * rng.standard_normal((600, 1), np.float32)
    model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 1))
    error = aicf.function(lambda x, y: aicf.mse_loss(model(x), y))

    @aicf.function
    def train(x, y):
        aicf.minimize(aicf.mse_loss(model(x), y), aicf.optim.AdamW(lr=1e-2))

    best, since, kept = np.inf, 0, model.state_dict()
    while since < patience:
        for rows in np.array_split(rng.permutation(500), 16):  # of 31 or 32
            train(x[rows], y[rows])
        now = float(error(x[500:], y[500:]))
        since = since + 1 if now >= best else 0
        if now < best:
            best, kept = now, model.state_dict()
    model.load_state_dict(kept)
    return best, float(error(x[500:], y[500:]))
