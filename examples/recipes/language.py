"""A causal transformer over lines of several lengths: padding neither counts nor is attended to."""

import aicf
import numpy as np
from aicf import nn

LINES = ["to be or not to be", "to have or not to have", "to see is to be", "not to see"]


def main(steps=150, width=32):
    codes = [[ord(c) - 31 for c in line] for line in LINES]  # 0 pads
    text = np.array([code + [0] * (23 - len(code)) for code in codes])
    layer = nn.TransformerEncoderLayer(width, 4, 64, 0.0, batch_first=True)
    letters, places = nn.Embedding(96, width, 0, name="letters"), nn.Embedding(64, width, name="at")
    body, head = nn.TransformerEncoder(layer, 2, name="body"), nn.Linear(width, 96, name="head")

    @aicf.function
    def train(tokens, following):
        x = letters(tokens) + places(np.arange(tokens.shape[1]))
        x = body(x, src_key_padding_mask=aicf.equal(tokens, 0), is_causal=True)
        loss = aicf.cross_entropy(aicf.permute(head(x), (0, 2, 1)), following, ignore_index=0)
        aicf.minimize(loss, aicf.optim.AdamW(lr=3e-3))
        return loss

    losses = [float(train(text[:, :-1], text[:, 1:])) for _ in range(steps)]
    return losses[0], losses[-1]
