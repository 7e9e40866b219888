"""Trains a character-level transformer on Python's own help texts and lets it write some.

    python examples/char_transformer.py [--steps N] [--out FOLDER]

The text is `pydoc_data.topics`, the language reference that Python's help() shows; it ships with
the standard library. Uses tqdm if it is installed.
"""

import argparse
from pathlib import Path
from pydoc_data.topics import topics
from typing import NamedTuple

import aicf
import numpy as np

try:
    from tqdm import tqdm
except ImportError:
    tqdm = None

BATCH, LENGTH = 16, 64  # sequences a step, characters each
WIDTH, HEADS, LAYERS = 64, 4, 2
SEED = 0


class Text(NamedTuple):
    """Character numbers to train on and to test on, and the characters they stand for."""

    train: np.ndarray
    test: np.ndarray
    letters: str


def load_text() -> Text:
    """All topics one after another, the last tenth kept for the test."""
    text = "\n".join(topics[name] for name in sorted(topics))
    letters = "".join(sorted(set(text)))
    number = {letter: i for i, letter in enumerate(letters)}
    codes = np.array([number[letter] for letter in text], np.int32)
    cut = len(codes) * 9 // 10
    return Text(codes[:cut], codes[cut:], letters)


def norm(g: aicf.Graph, name: str, x: aicf.Value) -> aicf.Value:
    """Layer norm with a scale and a shift of its own."""
    scale = g.param(f"{name}.scale", (WIDTH,), init=aicf.init.ones())
    return aicf.layer_norm(x, (WIDTH,), scale, g.param(f"{name}.shift", (WIDTH,)))


def attend(g: aicf.Graph, name: str, x: aicf.Value, training: bool) -> aicf.Value:
    """Causal self-attention with HEADS heads over x[rows, length, WIDTH]."""
    rows, length, _ = x.shape
    heads = []
    for part in aicf.split(g.dense(f"{name}.qkv", x, 3 * WIDTH), 3, axis=-1):
        part = part.reshape((rows, length, HEADS, WIDTH // HEADS))
        heads.append(aicf.permute(part, (0, 2, 1, 3)))
    y = aicf.scaled_dot_product_attention(*heads, causal=True)
    y = aicf.permute(y, (0, 2, 1, 3)).reshape((rows, length, WIDTH))
    return aicf.dropout(g.dense(f"{name}.out", y, WIDTH), 0.1, training)


def network(g: aicf.Graph, rows: int, letters: int, training: bool) -> aicf.Value:
    """Logits [rows * LENGTH, letters] of the character after each of the input x."""
    x = g.input("x", (rows, LENGTH), "int32")
    start = aicf.init.normal(std=0.1)
    h = aicf.embedding(x, g.param("letters", (letters, WIDTH), init=start))
    h = aicf.dropout(h + g.param("places", (LENGTH, WIDTH), init=start), 0.1, training)
    for i in range(LAYERS):
        h = h + attend(g, f"{i}.attention", norm(g, f"{i}.norm0", h), training)
        inner = aicf.gelu(g.dense(f"{i}.wide", norm(g, f"{i}.norm1", h), 4 * WIDTH))
        h = h + aicf.dropout(g.dense(f"{i}.narrow", inner, WIDTH), 0.1, training)
    return g.dense("out", norm(g, "norm", h), letters).reshape((rows * LENGTH, letters))


def train_graph(letters: int, steps: int) -> aicf.Graph:
    """One training step: inputs x and next, output loss."""
    g = aicf.Graph("train")
    logits = network(g, BATCH, letters, True)
    loss = aicf.cross_entropy(logits, g.input("next", (BATCH * LENGTH,), "int32"))
    rate = aicf.optim.warmup_cosine(g.step_count(), 4e-3, min(30, steps - 1), steps)
    g.minimize(loss, aicf.optim.AdamW(lr=rate), clip_norm=1.0)
    g.output("loss", loss)
    return g


def test_graph(letters: int) -> aicf.Graph:
    """The loss on a batch, without dropout and without an update."""
    g = aicf.Graph("test")
    logits = network(g, BATCH, letters, False)
    g.output("loss", aicf.cross_entropy(logits, g.input("next", (BATCH * LENGTH,), "int32")))
    return g


def write_graph(letters: int) -> aicf.Graph:
    """Logits for one sequence."""
    g = aicf.Graph("write")
    g.output("logits", network(g, 1, letters, False))
    return g


def batch(codes: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """BATCH random pieces of the text, and the same moved by one character."""
    starts = rng.integers(0, len(codes) - LENGTH, BATCH)
    pieces = codes[starts[:, None] + np.arange(LENGTH + 1)]
    return {"x": pieces[:, :-1].copy(), "next": pieces[:, 1:].reshape(-1)}


def held_out(test: aicf.Step, text: Text) -> float:
    """The mean loss of eight fixed batches of the test text."""
    rng = np.random.default_rng(SEED + 1)
    return float(np.mean([float(test(**batch(text.test, rng))["loss"]) for _ in range(8)]))


def write(step: aicf.Step, text: Text, start: str, count: int) -> str:
    """`start` and `count` more characters, each drawn from what the network expects."""
    rng = np.random.default_rng(SEED)
    codes = [text.letters.index(letter) for letter in start]
    for _ in range(count):
        known = codes[-LENGTH:]
        x = np.zeros((1, LENGTH), np.int32)
        x[0, : len(known)] = known
        logits = step(x=x)["logits"].numpy()[len(known) - 1].astype(np.float64) / 0.7
        p = np.exp(logits - logits.max())
        codes.append(int(rng.choice(len(p), p=p / p.sum())))
    return "".join(text.letters[code] for code in codes)


def progress(count: int):
    """The numbers 0 to count - 1, with a progress bar."""
    if tqdm is not None:
        yield from tqdm(range(count), unit="step")
        return
    for i in range(count):
        yield i
        if (i + 1) % 20 == 0 or i + 1 == count:
            print(f"\rstep {i + 1}/{count}", end="\n" if i + 1 == count else "", flush=True)


def main(argv: list[str] | None = None) -> tuple[float, float]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--out", type=Path, default=Path("char_transformer_out"))
    args = parser.parse_args(argv)
    if args.steps < 2:
        parser.error("--steps: need at least 2")
    args.out.mkdir(parents=True, exist_ok=True)

    text = load_text()
    letters = len(text.letters)
    print(f"{len(text.train)} characters to train on, {len(text.test)} to test on")
    train = train_graph(letters, args.steps).compile(seed=SEED)
    test = test_graph(letters).compile(share=train)
    before = held_out(test, text)
    print(f"before: held-out loss {before:.4f} a character")
    rng = np.random.default_rng(SEED)
    for _ in progress(args.steps):
        train(**batch(text.train, rng))
    after = held_out(test, text)
    print(f"after {args.steps} steps: held-out loss {after:.4f} a character")
    train.save(args.out / "checkpoint.safetensors")

    resumed = train_graph(letters, args.steps).compile()
    resumed.load(args.out / "checkpoint.safetensors")
    again = held_out(test_graph(letters).compile(share=resumed), text)
    print(f"from the checkpoint: held-out loss {again:.4f} a character")
    print(write(write_graph(letters).compile(share=resumed), text, "The ", 120))
    return before, after


if __name__ == "__main__":
    main()
