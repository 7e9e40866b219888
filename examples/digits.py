"""Trains a small network on handwritten digits, is killed half-way, and ends on the same bits.

    python examples/digits.py [--epochs N] [--out FOLDER]

Needs scikit-learn, whose package holds the 1,797 images. Uses tqdm and matplotlib if installed.
"""

import argparse
import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import aicf
import numpy as np
from sklearn.datasets import load_digits

try:
    from tqdm import tqdm
except ImportError:
    tqdm = None

HIDDEN = 128
BATCH = 64
TEST_ROWS = 360
SEED = 0
SAVE_EVERY = 50  # steps


class Data(NamedTuple):
    """Images as rows of 64 pixels in [0, 1], and their digits."""

    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray


def load_data() -> Data:
    """The images in a fixed random order, the last TEST_ROWS of them kept for the test."""
    digits = load_digits()
    order = np.random.default_rng(SEED).permutation(len(digits.target))
    x = (digits.data[order] / 16).astype(np.float32)
    y = digits.target[order].astype(np.int32)
    cut = len(y) - TEST_ROWS
    return Data(x[:cut], y[:cut], x[cut:], y[cut:])


def network(g: aicf.Graph, rows: int) -> aicf.Value:
    """Ten logits for each of `rows` images given as the input x."""
    hidden = aicf.relu(g.dense("0", g.input("x", (rows, 64)), HIDDEN))
    return g.dense("2", hidden, 10)


def train_graph(rows: int) -> aicf.Graph:
    """One training step on a batch of `rows` images: inputs x and labels, output loss."""
    g = aicf.Graph(f"train_{rows}")
    loss = aicf.cross_entropy(network(g, rows), g.input("labels", (rows,), "int32"))
    g.minimize(loss, aicf.optim.Adam(lr=2e-3))
    g.output("loss", loss)
    return g


def inference_graph(rows: int) -> aicf.Graph:
    """The network alone: input x, output logits."""
    g = aicf.Graph(f"inference_{rows}")
    g.output("logits", network(g, rows))
    return g


class Steps(NamedTuple):
    """Three Steps over one set of parameters; the first two share the optimizer's state as well."""

    train: aicf.Step
    tail: aicf.Step  # the short batch at the end of an epoch
    inference: aicf.Step


def compile_steps(data: Data) -> Steps:
    """Compiles them; what `share` names is neither copied nor initialised again."""
    train = train_graph(BATCH).compile(seed=SEED)
    tail = train_graph(len(data.train_y) % BATCH).compile(share=train)
    inference = inference_graph(len(data.test_y)).compile(share=train)
    return Steps(train, tail, inference)


def batches(rows: int, epoch: int) -> list[np.ndarray]:
    """Row numbers of each batch of an epoch, the short one last. They depend on the epoch alone."""
    order = np.random.default_rng([SEED, epoch]).permutation(rows)
    return [order[begin : begin + BATCH] for begin in range(0, rows, BATCH)]


class Progress:
    """A progress bar by tqdm, or without it one line of text that is written over."""

    def __init__(self, done: int, total: int) -> None:
        self.done, self.total = done, total
        self.bar = tqdm(initial=done, total=total, unit="step") if tqdm else None

    def advance(self, loss: float) -> None:
        self.done += 1
        if self.bar is not None:
            self.bar.set_postfix(loss=f"{loss:.4f}", refresh=False)
            self.bar.update()
        elif self.done % 50 == 0 or self.done == self.total:
            end = "\n" if self.done == self.total else ""
            print(f"\rstep {self.done}/{self.total}  loss {loss:.4f}", end=end, flush=True)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


def train(
    steps: Steps, data: Data, epochs: int, after: Callable[[int], None] | None = None
) -> list[float]:
    """Trains up to the end of epoch `epochs` and returns the loss of each step taken.

    The optimizer's own step count says where to begin: a fresh start and a resumed one are the
    same call. `after` is called with the step count after every step.
    """
    rows = len(data.train_y)
    per_epoch = len(batches(rows, 0))
    count, total = int(steps.train.state["opt.step"]), epochs * per_epoch
    losses = []
    progress = Progress(count, total)
    while count < total:
        epoch, done = divmod(count, per_epoch)
        for chosen in batches(rows, epoch)[done:]:
            step = steps.train if len(chosen) == BATCH else steps.tail
            out = step(x=data.train_x[chosen], labels=data.train_y[chosen])
            losses.append(float(out["loss"]))
            count += 1
            progress.advance(losses[-1])
            if after is not None:
                after(count)
    progress.close()
    return losses


def accuracy(steps: Steps, data: Data) -> float:
    """The share of test images whose largest logit is the right one."""
    logits = steps.inference(x=data.test_x)["logits"].numpy()
    return float((logits.argmax(axis=1) == data.test_y).mean())


def state_hash(step: aicf.Step) -> str:
    """SHA-256 over the names and bytes of all parameters and all optimizer state."""
    digest = hashlib.sha256()
    for name, array in sorted(step.state_dict().items()):
        digest.update(name.encode() + array.tobytes())
    return digest.hexdigest()


def draw(losses: list[float], path: Path) -> None:
    """The loss of every step as a picture."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no picture of the loss: matplotlib is not installed (pip install matplotlib)")
        return
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(range(1, len(losses) + 1), losses, linewidth=0.8)
    axes.set(xlabel="step", ylabel="cross-entropy", yscale="log", title="Training loss, digits")
    figure.savefig(path, dpi=120)
    print(f"loss curve: {path}")


def train_and_die(epochs: int, checkpoint: Path, last_step: int) -> None:
    """Saves a checkpoint every SAVE_EVERY steps and kills this process after `last_step`."""
    data = load_data()
    steps = compile_steps(data)

    def after(count: int) -> None:
        if count % SAVE_EVERY == 0:
            steps.train.save(checkpoint)
        if count == last_step:
            os.kill(os.getpid(), signal.SIGKILL)

    train(steps, data, epochs, after)


def killed_run(epochs: int, checkpoint: Path) -> None:
    """Runs train_and_die in a child process, up to the middle of the training."""
    checkpoint.unlink(missing_ok=True)
    per_epoch = -(-(len(load_data().train_y)) // BATCH)
    last_step = max(epochs * per_epoch // 2, SAVE_EVERY + 1)
    command = [sys.executable, __file__, "--epochs", str(epochs), "--out", str(checkpoint.parent)]
    child = subprocess.run([*command, "--die-after", str(last_step)])
    if child.returncode != -signal.SIGKILL:
        sys.exit(f"digits: the child ended with {child.returncode}; it was to be killed")
    print(f"killed after step {last_step}; the last checkpoint is {checkpoint}")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--out", type=Path, default=Path("digits_out"))
    parser.add_argument("--die-after", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.epochs < 3:
        parser.error("--epochs: need at least 3")
    args.out.mkdir(parents=True, exist_ok=True)
    checkpoint = args.out / "checkpoint.safetensors"
    if args.die_after is not None:
        return train_and_die(args.epochs, checkpoint, args.die_after)

    data = load_data()
    print(f"{len(data.train_y)} images to train on, {len(data.test_y)} to test on")
    print("training without interruption")
    steps = compile_steps(data)
    losses = train(steps, data, args.epochs)
    print(f"test accuracy {accuracy(steps, data):.2%}, last loss {losses[-1]:.4f}")
    draw(losses, args.out / "loss.png")

    print("the same training in a child process, killed half-way")
    killed_run(args.epochs, checkpoint)
    resumed = compile_steps(data)
    resumed.train.load(checkpoint)
    print(f"resuming at step {int(resumed.train.state['opt.step'])}")
    train(resumed, data, args.epochs)
    print(f"test accuracy {accuracy(resumed, data):.2%}")

    hashes = [state_hash(steps.train), state_hash(resumed.train)]
    print(f"state without interruption  {hashes[0]}")
    print(f"state killed and resumed    {hashes[1]}")
    if hashes[0] != hashes[1]:
        sys.exit("digits: the two runs differ")
    print("every byte of every parameter and optimizer state is equal")


if __name__ == "__main__":
    main()
