"""An LSTM over 500 characters: each step runs over all of the text and back."""

import json

import aicf
import numpy as np

LENGTH, WIDTH, HIDDEN = 500, 16, 48
TEXT = " ".join(json.__doc__.split())[: LENGTH + 1]
LETTERS = sorted(set(TEXT))


def train_graph():
    g = aicf.Graph("lstm_chars")
    text = g.input("text", (LENGTH + 1,), "int64")
    uniform = aicf.init.uniform(-(HIDDEN**-0.5), HIDDEN**-0.5)
    shapes = {"weight_ih_l0": (4 * HIDDEN, WIDTH), "weight_hh_l0": (4 * HIDDEN, HIDDEN),
              "bias_ih_l0": (4 * HIDDEN,), "bias_hh_l0": (4 * HIDDEN,)}  # fmt: skip
    weights = [g.param(name, shape, init=uniform) for name, shape in shapes.items()]
    letters = g.param("letters", (len(LETTERS), WIDTH), init=aicf.init.normal())
    hidden, _ = aicf.lstm(aicf.embedding(text[:-1], letters), weights)
    logits = g.dense("next", hidden, len(LETTERS))
    loss = aicf.cross_entropy(logits, text[1:])
    g.minimize(loss, aicf.optim.Adam(lr=5e-3), clip_norm=1.0)
    g.output("loss", loss)
    return g


def batch(rng):
    """The same text in every step."""
    return {"text": np.array([LETTERS.index(letter) for letter in TEXT])}


if __name__ == "__main__":
    step = train_graph().compile()
    losses = [float(step(**batch(None))["loss"]) for _ in range(200)]
    print([round(loss, 3) for loss in losses[::20]])
