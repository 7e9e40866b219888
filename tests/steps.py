"""The training and inference steps that the tests of Step run."""

import aicf
import numpy as np
from aicf import verify

BATCH, SIZES = 13, (9, 7, 5)


def build_train(batch=BATCH, optimizer=None, keep=1, dtype="float32"):
    """An MLP with distinct sizes, cross-entropy and Adam."""
    g = aicf.Graph("train")
    x = g.input("x", (batch, SIZES[0]), dtype)
    labels = g.input("labels", (batch,), "int64")
    y = g.dense("1", aicf.tanh(g.dense("0", x, SIZES[1])), SIZES[2])
    loss = aicf.cross_entropy(y, labels)
    g.minimize(loss, optimizer or aicf.optim.Adam(lr=1e-2))
    g.output("loss", loss, keep=keep)
    g.output("y", y)
    return g


def build_infer(batch=4):
    """The same model without the training."""
    g = aicf.Graph("infer")
    y = g.dense("1", aicf.tanh(g.dense("0", g.input("x", (batch, SIZES[0])), SIZES[1])), SIZES[2])
    g.output("y", y)
    return g


def batch_of(seed, batch=BATCH, dtype=np.float32):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((batch, SIZES[0])).astype(dtype)
    return {"x": x, "labels": rng.integers(0, SIZES[2], batch)}


def build_wide():
    """Large enough that the CPU backend splits the work among threads."""
    g = aicf.Graph("wide")
    x, t = g.input("x", (96, 200)), g.input("t", (96, 130))
    y = g.dense("1", aicf.gelu(g.dense("0", x, 260)), 130)
    loss = aicf.mse_loss(aicf.softmax(y), t) + aicf.mean(aicf.sum(y * y, 1)) * 0.01
    g.minimize(loss, aicf.optim.Adam())
    g.output("loss", loss)
    return g


def wide_hash(step, steps=3):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((96, 200)).astype(np.float32)
    t = rng.standard_normal((96, 130)).astype(np.float32)
    step(x=x, t=t)
    step.replay(steps - 1)
    return verify.state_hash(step) + step.outputs["loss"].numpy().tobytes().hex()


def hash_after(step, count, run="call"):
    for seed in range(count):
        step.run(**batch_of(seed)) if run == "run" else step(**batch_of(seed))
    return verify.state_hash(step)
