"""Batches of any number of rows of any length, by a few steps: what is padded does not count."""

import aicf
import numpy as np
from aicf import nn

ROWS, LENGTH = aicf.Bucket(8, 32), aicf.Bucket(16, 32, 64, name="length")


def main(steps=200):
    rng = np.random.default_rng(0)
    embed, head = nn.Embedding(10, 8, name="embed"), nn.Linear(8, 1, name="head")

    @aicf.function(buckets={"tokens": (ROWS, LENGTH), "lengths": ROWS, "sums": ROWS})
    def train(tokens, lengths, sums):
        places = tokens.graph.constant(np.arange(tokens.shape[1]))
        given = aicf.expand_dims(aicf.less(places, aicf.expand_dims(lengths, 1)), 2)
        x = aicf.sum(aicf.where(given, embed(tokens), 0.0), 1)
        loss = ROWS.mean((head(x)[:, 0] - sums) ** 2.0)
        aicf.minimize(loss, aicf.optim.Adam(lr=1e-2))
        return loss

    losses = []
    for _ in range(steps):
        rows, longest = rng.integers(1, 33), rng.integers(1, 65)
        lengths = rng.integers(1, longest + 1, rows)
        tokens = rng.integers(0, 10, (rows, longest))
        sums = np.array([row[:n].sum() for row, n in zip(tokens, lengths, strict=True)]) / 64
        losses.append(float(train(tokens, lengths, sums.astype(np.float32))))
    return losses, len(train.cache)
