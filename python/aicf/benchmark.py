"""`aicf bench`: four training steps, timed on this machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from . import optim
from .class_losses import cross_entropy
from .convolutions import conv2d
from .graph import Graph, Value
from .losses import mse_loss
from .movement import flatten
from .nn_functions import layer_norm, scaled_dot_product_attention
from .ops import gelu, mean, relu
from .pools import max_pool2d
from .progress import Progress
from .step import Step
from .units import bytes_text, count_text, time_text

_ROUND = 0.03  # seconds that a round takes at least


class Timing(NamedTuple):
    """What one step took; times in seconds."""

    name: str
    rounds: list[float]  # each the mean of the steps in it
    compile: float
    launches: int
    flops: int
    peak_bytes: int

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)


def _mlp(sizes: tuple[int, ...], batch: int) -> Graph:
    g = Graph("-".join(map(str, sizes)))
    x = g.input("x", (batch, sizes[0]))
    for i, size in enumerate(sizes[1:]):
        x = g.dense(str(i), relu(x) if i else x, size)
    if sizes[-1] == 10:
        return _trained(g, cross_entropy(x, g.input("labels", (batch,), "int32")))
    return _trained(g, mse_loss(x, g.input("t", x.shape)))


def _convolution() -> Graph:
    g = Graph("convolution")
    x = g.input("x", (32, 1, 28, 28))
    for i, (channels, before) in enumerate(((8, 1), (16, 8))):
        kernel = g.param(f"{i}.W", (channels, before, 3, 3))
        x = max_pool2d(relu(conv2d(x, kernel, padding=1)), 2)
    labels = g.input("labels", (32,), "int32")
    return _trained(g, cross_entropy(g.dense("2", flatten(x, 1), 10), labels))


def _transformer(batch: int = 8, length: int = 32, width: int = 64, heads: int = 4) -> Graph:
    g = Graph("transformer")
    x = g.input("x", (batch, length, width))
    y = layer_norm(x, width)
    parts = (g.dense(f"attention.{name}", y, width) for name in "qkv")
    split = (batch, length, heads, width // heads)
    q, k, v = (part.reshape(split).permute((0, 2, 1, 3)) for part in parts)
    y = scaled_dot_product_attention(q, k, v, causal=True).permute((0, 2, 1, 3)).reshape(x.shape)
    x = x + g.dense("attention.out", y, width)
    x = x + g.dense("narrow", gelu(g.dense("wide", layer_norm(x, width), 4 * width)), width)
    return _trained(g, mean(x * x))


def _trained(g: Graph, loss: Value) -> Graph:
    g.minimize(loss, optim.Adam())
    g.output("loss", loss)
    return g


STEPS: dict[str, Callable[[], Graph]] = {
    "8-8-8, batch 64": lambda: _mlp((8, 8, 8), 64),
    "784-512-512-10, batch 128": lambda: _mlp((784, 512, 512, 10), 128),
    "convolution, batch 32": _convolution,
    "transformer block, batch 8": _transformer,
}


def run(device: str, math: str, rounds: int) -> Iterator[Timing]:
    """Times each step; a round replays it often enough to take a few hundredths of a second."""
    for name, build in STEPS.items():
        with Progress(f"timing {name}"):
            graph, start = build(), time.perf_counter()
            step = graph.compile(device=device, math=math)
            seconds = time.perf_counter() - start
            plan = step.plan
            timed = list(_rounds(step, rounds))
        yield Timing(name, timed, seconds, len(plan.ops), plan.flops, plan.peak_bytes)


def _rounds(step: Step, rounds: int) -> Iterator[float]:
    rng = np.random.default_rng(0)
    inputs: dict[str, Any] = {}
    for place in step.plan.values.values():
        if place["region"] == "inputs":
            inputs[place["name"]] = _content(step._array(place["name"]), rng)
    step(**inputs)
    count, taken = 1, 0.0
    while (taken := _taken(step, count)) < _ROUND:
        count = max(count + 1, int(count * min(10.0, 1.2 * _ROUND / max(taken, 1e-6))))
    for _ in range(rounds):
        yield _taken(step, count) / count


def _content(array: Any, rng: np.random.Generator) -> np.ndarray:
    if array.dtype == "int32":  # labels of ten classes
        return rng.integers(0, 10, array.shape).astype(np.int32)
    return rng.standard_normal(array.shape, dtype=np.float32)


def _taken(step: Step, count: int) -> float:
    step.synchronize()
    start = time.perf_counter()
    step.replay(count)
    step.synchronize()
    return time.perf_counter() - start


def line(timing: Timing) -> str:
    """One step as a line of the table that `head` begins."""
    spread = f"[{time_text(min(timing.rounds))} .. {time_text(max(timing.rounds))}]"
    return (
        f"{timing.name:27}{time_text(timing.median):>9}  {spread:24}{timing.launches:>9}"
        f"{count_text(timing.flops / timing.median):>9}FLOP/s{bytes_text(timing.peak_bytes):>11}"
        f"{time_text(timing.compile):>10}"
    )


def head() -> str:
    """The names of the columns of `line`."""
    return (
        f"{'training step, Adam':27}{'median':>9}  {'[least .. most]':24}{'launches':>9}"
        f"{'rate':>15}{'memory':>11}{'compile':>10}"
    )
