"""Trains a small convolutional network on handwritten digits and saves a checkpoint.

    python examples/digits_conv.py [--steps N] [--out FOLDER]

Needs scikit-learn, whose package holds the 1,797 images. Uses tqdm if it is installed.
"""

import argparse
from pathlib import Path
from typing import NamedTuple

import aicf
import numpy as np
from sklearn.datasets import load_digits

try:
    from tqdm import tqdm
except ImportError:
    tqdm = None

BATCH = 64
TEST_ROWS = 360
SEED = 0


class Data(NamedTuple):
    """Images [rows, 1, 8, 8] in [0, 1], and their digits."""

    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray


def load_data() -> Data:
    """The images in a fixed random order, the last TEST_ROWS of them kept for the test."""
    digits = load_digits()
    order = np.random.default_rng(SEED).permutation(len(digits.target))
    x = (digits.images[order] / 16).astype(np.float32)[:, None]
    y = digits.target[order].astype(np.int32)
    cut = len(y) - TEST_ROWS
    return Data(x[:cut], y[:cut], x[cut:], y[cut:])


def network(g: aicf.Graph, rows: int, training: bool) -> aicf.Value:
    """Ten logits for each of `rows` images: two convolutions with batch norm, then a layer."""
    x = g.input("x", (rows, 1, 8, 8))
    for name, depth, channels in (("conv0", 1, 16), ("conv1", 16, 32)):
        kernel = g.param(f"{name}.W", (channels, depth, 3, 3))
        scale = g.param(f"{name}.scale", (channels,), init=aicf.init.ones())
        shift = g.param(f"{name}.shift", (channels,))
        mean = g.state(f"{name}.mean", (channels,))
        var = g.state(f"{name}.var", (channels,), init=aicf.init.ones())
        x = aicf.conv2d(x, kernel, padding=1)
        x = aicf.relu(aicf.batch_norm(x, mean, var, scale, shift, training=training))
        x = aicf.max_pool2d(x, 2)
    return g.dense("out", aicf.dropout(aicf.flatten(x, 1), 0.25, training), 10)


def train_graph(steps: int) -> aicf.Graph:
    """One training step on BATCH images: inputs x and labels, output loss."""
    g = aicf.Graph("train")
    loss = aicf.cross_entropy(network(g, BATCH, True), g.input("labels", (BATCH,), "int32"))
    rate = aicf.optim.warmup_cosine(g.step_count(), 3e-3, min(20, steps - 1), steps)
    g.minimize(loss, aicf.optim.AdamW(lr=rate))
    g.output("loss", loss)
    return g


def test_graph(rows: int) -> aicf.Graph:
    """Loss and the number of right answers on held-out images."""
    g = aicf.Graph("test")
    logits, labels = network(g, rows, False), g.input("labels", (rows,), "int64")
    g.output("loss", aicf.cross_entropy(logits, labels))
    right = aicf.equal(aicf.argmax(logits, 1), labels)
    g.output("right", aicf.sum(aicf.cast(right, "int32")))
    return g


def held_out(test: aicf.Step, data: Data) -> tuple[float, float]:
    """Loss and accuracy on the test images."""
    out = test(x=data.test_x, labels=data.test_y.astype(np.int64))
    return float(out["loss"]), int(out["right"]) / len(data.test_y)


def progress(count: int):
    """The numbers 0 to count - 1, with a progress bar."""
    if tqdm is not None:
        yield from tqdm(range(count), unit="step")
        return
    for i in range(count):
        yield i
        if (i + 1) % 50 == 0 or i + 1 == count:
            print(f"\rstep {i + 1}/{count}", end="\n" if i + 1 == count else "", flush=True)


def main(argv: list[str] | None = None) -> tuple[float, float]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--out", type=Path, default=Path("digits_conv_out"))
    args = parser.parse_args(argv)
    if args.steps < 2:
        parser.error("--steps: need at least 2")
    args.out.mkdir(parents=True, exist_ok=True)

    data = load_data()
    train = train_graph(args.steps).compile(seed=SEED)
    test = test_graph(len(data.test_y)).compile(share=train)
    before, right = held_out(test, data)
    print(f"before: held-out loss {before:.4f}, accuracy {right:.2%}")
    rng = np.random.default_rng(SEED)
    for _ in progress(args.steps):
        rows = rng.choice(len(data.train_y), BATCH, replace=False)
        train(x=data.train_x[rows], labels=data.train_y[rows])
    after, right = held_out(test, data)
    print(f"after {args.steps} steps: held-out loss {after:.4f}, accuracy {right:.2%}")
    train.save(args.out / "checkpoint.safetensors")

    resumed = train_graph(args.steps).compile()
    resumed.load(args.out / "checkpoint.safetensors")
    again, _ = held_out(test_graph(len(data.test_y)).compile(share=resumed), data)
    print(f"from the checkpoint: held-out loss {again:.4f}")
    return before, after


if __name__ == "__main__":
    main()
