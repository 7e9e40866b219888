"""The training step of examples/char_transformer.py, ours and PyTorch's, from the same params."""

import math
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
import char_transformer as char

STEPS = 10000  # of the schedule


def ours():
    """A Step and one batch."""
    text = char.load_text()
    step = char.train_graph(len(text.letters), STEPS).compile(device="cpu", seed=char.SEED)
    return step, char.batch(text.train, np.random.default_rng(0))


def network(p, x, training):
    """Logits [rows * length, letters]; p: params by the names they have in the graph."""
    import torch.nn.functional as functional

    def dense(name, h):
        return functional.linear(h, p[f"{name}.W"], p[f"{name}.b"])

    def norm(name, h):
        return functional.layer_norm(h, h.shape[-1:], p[f"{name}.scale"], p[f"{name}.shift"])

    def drop(h):
        return functional.dropout(h, 0.1, training)

    rows, length = x.shape
    h = drop(functional.embedding(x, p["letters"]) + p["places"])
    for i in range(char.LAYERS):
        heads = dense(f"{i}.attention.qkv", norm(f"{i}.norm0", h)).chunk(3, -1)
        q, k, v = (part.reshape(rows, length, char.HEADS, -1).transpose(1, 2) for part in heads)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.transpose(1, 2).reshape(rows, length, -1)
        h = h + drop(dense(f"{i}.attention.out", y))
        inner = functional.gelu(dense(f"{i}.wide", norm(f"{i}.norm1", h)))
        h = h + drop(dense(f"{i}.narrow", inner))
    return dense("out", norm("norm", h)).reshape(rows * length, -1)


def theirs(feed, compiled):
    """A function that takes one training step; its network gives our loss, which is checked."""
    import torch

    text = char.load_text()
    test = char.test_graph(len(text.letters)).compile(device="cpu", seed=char.SEED)
    p = {name: torch.tensor(value.numpy()).requires_grad_() for name, value in test.params.items()}
    x, target = torch.from_numpy(feed["x"]), torch.from_numpy(feed["next"]).long()

    def loss_of(p, x, target, training):
        return torch.nn.functional.cross_entropy(network(p, x, training), target)

    with torch.no_grad():
        expected, found = float(test(**feed)["loss"]), float(loss_of(p, x, target, False))
    assert math.isclose(found, expected, rel_tol=1e-4), (found, expected)

    optimizer = torch.optim.AdamW(p.values(), lr=4e-3, fused=True)
    if compiled:
        loss_of = torch.compile(loss_of, fullgraph=True)
    done = 0

    def step():
        nonlocal done
        done += 1
        share = min(done / 30, 0.5 + 0.5 * math.cos(math.pi * max(done - 30, 0) / (STEPS - 30)))
        optimizer.param_groups[0]["lr"] = 4e-3 * share
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(p, x, target, True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(p.values(), 1.0)
        optimizer.step()
        return loss.detach()

    for _ in range(5):
        loss = step()
    assert math.isfinite(float(loss))
    return step
