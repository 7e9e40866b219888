"""A convolutional network with batch norm and dropout, in training and in evaluation."""

import aicf
import numpy as np
from aicf import nn


def pictures(rng, count):
    """Bars that lie or stand, in noise."""
    x, labels = rng.standard_normal((count, 1, 12, 12), np.float32), rng.integers(0, 2, count)
    for i, label in enumerate(labels):
        x[(i, 0, rng.integers(12)) if label else (i, 0, slice(None), rng.integers(12))] += 2
    return x, labels


def main(steps=150):
    rng = np.random.default_rng(0)
    block = [nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)]
    model = nn.Sequential(*block, nn.Flatten(), nn.Dropout(0.2), nn.Linear(8 * 36, 2))
    predict = aicf.function(lambda x: aicf.argmax(model(x), 1))

    @aicf.function
    def train(x, labels):
        aicf.minimize(aicf.cross_entropy(model(x), labels), aicf.optim.Adam(lr=3e-3))

    for _ in range(steps):
        train(*pictures(rng, 64))
    model.eval()
    x, labels = pictures(rng, 500)
    return float(np.mean(predict(x) == labels))
