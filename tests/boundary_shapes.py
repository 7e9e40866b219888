"""The kernels' own sizes: which there are, which of them an op's shapes meet, and how to draw
shapes around one."""

import collections
import functools
import math

import numpy as np
from aicf import _core

SIZES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "int32": 4, "int64": 8}
ROW_OPS = (
    "softmax", "log_softmax", "softmax_bwd", "log_softmax_bwd", "normalize", "normalize_bwd",
    "cross_entropy", "cross_entropy_grad",
)  # fmt: skip
REDUCTIONS = ("reduce_sum", "reduce_mean", "reduce_max", "reduce_min")
RANDOM = ("dropout", "random_uniform", "random_normal")
SCANS = ("cumsum", "chunk_sums", "cumsum_chunks")
UPDATES = (
    "sgd_step", "adam_step", "scaled_adam_step", "guarded_sgd_step", "guarded_adam_step",
)  # fmt: skip
OTHERS = (
    "gemm", "copy", "mse_loss", "take", "take_bwd", "pad", "concat", "pick", "pick_bwd", "fold",
    "max_pool", "max_pool_bwd", "reduce_argmax", "step_inc", "bias_corr", "ring_push",
)  # fmt: skip
SIDES = (-1, 0, 1)
# What is a product of sizes is met a little below and a little above.
PRODUCTS = {
    "gemm.strip", "gemm.panel", "gemm.b_bytes", "gemm.work", "gemm.ns", "gemm.results",
    "program.ns",
    "program.elements_streamed", "program.bytes_streamed", "copy.bytes", "columns.results",
    "columns.elements", "reduce.streamed", "rows.elements", "mse.elements",
}  # fmt: skip
NEAR = 0.07
ROLES_WORK = 1 << 22  # multiplications from which on a GPU's warps may have roles
LEAST = {"gemm.columns": 2, "columns.width": 2}  # one column is taken another way altogether
# Shapes of many megabytes: the first graphs of a family have them, and no others.
HEAVY = {"program.elements_streamed", "program.bytes_streamed", "reduce.streamed"}


@functools.cache
def table(backend="cpu"):
    """(quantity, bytes of an element, value), each once, of all instruction sets."""
    listed = _core.cpu_thresholds() if backend == "cpu" else _core.cuda_thresholds()
    return sorted({(quantity, size, value) for _, size, quantity, value in listed})


@functools.cache
def targets(quantities, backend="cpu"):
    """(quantity, bytes of an element, value, side) of some quantities; those of many megabytes
    first."""
    found = [
        (quantity, size, value, side)
        for quantity, size, value in table(backend)
        if quantity.startswith(quantities)
        for side in SIDES
        if value + side >= LEAST.get(quantity, 1)
    ]
    return sorted(found, key=lambda target: target[0] not in HEAVY)


def target_of(quantities, number, backend="cpu"):
    """What graph `number` of a family aims at; None where it has no table."""
    wanted = targets(quantities, backend)
    light = [target for target in wanted if target[0] not in HEAVY]
    if number < len(wanted):
        return wanted[number]
    return light[(number - len(wanted)) % len(light)] if light else None


class Dice(np.random.Generator):
    """A generator that knows the sizes to draw around."""

    def __init__(self, seed, backend="cpu"):
        super().__init__(np.random.PCG64(seed))
        self.table = table(backend)

    def pick(self, *choices):
        return choices[int(self.integers(len(choices)))]

    def near(self, quantity, size, most):
        """A size at or next to some threshold, or between two."""
        known = [v for q, s, v in self.table if q == quantity and s == size and v <= most]
        if not known or self.integers(5) == 0:
            return int(self.integers(1, most + 1))
        return int(np.clip(self.pick(*known) + self.integers(-1, 2), 1, most))


def side_of(quantity, value, threshold):
    """-1, 0 or 1 where a value is just below, at or just above a threshold; else None."""
    if quantity == "gemm.row_bytes":  # every multiple counts
        rest = value % threshold
        return 0 if rest == 0 else 1 if rest <= 8 else -1 if rest >= threshold - 8 else None
    if quantity in PRODUCTS:
        apart = (value - threshold) / threshold
        if quantity.endswith(".ns") and abs(apart) <= 0.005:
            return 0
        return (apart > 0) - (apart < 0) if abs(apart) <= NEAR else None
    apart = value - threshold
    return apart if apart in SIDES else None


# ---- what an op's shapes come to


def bytes_of(view):
    return math.prod(view["shape"]) * SIZES.get(view["dtype"], 1)


def _space(op):
    """Axes of an op's result, and the strides of each operand along them; ones are left out."""
    shape = op["outputs"][0]["shape"]
    strides = [view["strides"] for view in op["inputs"] if view["shape"] == shape]
    axes = [d for d, n in enumerate(shape) if n != 1]
    return [shape[d] for d in axes], [[s[d] for d in axes] for s in strides]


def _merged(shape, strides):
    """Neighbouring axes as one where all operands step so."""
    sizes, steps = [], [[] for _ in strides]
    for d, size in enumerate(shape):
        if sizes and all(t[-1] == s[d] * size for t, s in zip(steps, strides, strict=True)):
            sizes[-1] *= size
            for t, s in zip(steps, strides, strict=True):
                t[-1] = s[d]
        else:
            sizes.append(size)
            for t, s in zip(steps, strides, strict=True):
                t.append(s[d])
    return sizes, steps


def measure(op):
    """(quantity, bytes of an element, value) of one lowered op."""
    name, out = op["op"], op["outputs"][0]
    first = op["inputs"][0] if op["inputs"] else out
    size = SIZES.get(first["dtype"], 1)
    if name == "gemm":
        a, b = op["inputs"]
        (m, n), k = out["shape"][-2:], a["shape"][-1]
        step = b["strides"][-2]
        if n == 1 and m > 1:
            m, n, step = n, m, a["strides"][-1]
        yield "gemm.rows", size, m
        yield "gemm.columns", size, n
        yield "gemm.terms", size, k
        yield "gemm.strip", size, n * min(k, 288)
        yield "gemm.panel", size, n * min(k, 288)
        yield "gemm.b_bytes", size, n * k * size
        if step > 1:
            yield "gemm.row_bytes", size, step * size
        yield "gemm.work", size, m * n * k
        yield "gemm.results", size, m * n
        if size == 2 and m * n * k >= ROLES_WORK and all(map(_in_lines, op["inputs"])):
            yield "roles.rows", size, m
            yield "roles.columns", size, n
            yield "roles.terms", size, k
        moved = sum(map(bytes_of, [a, b, out]))
        yield "gemm.ns", size, 2 * math.prod(out["shape"]) * k * 0.02 + moved * 0.1
        return
    if name in REDUCTIONS:
        axes = [a % len(first["shape"]) for a in op["attrs"]["axes"]]
        kept = [d for d, n in enumerate(first["shape"]) if d not in axes and n != 1]
        reduced = [d for d in axes if first["shape"][d] != 1]
        terms = math.prod(first["shape"][d] for d in axes)
        results = math.prod(first["shape"][d] for d in kept)
        yield "reduce.streamed", size, terms * results
        if kept and first["strides"][kept[-1]] == 1 and kept[-1] not in axes and reduced:
            yield "columns.terms", size, terms
            yield "columns.width", size, _merged_last(first, kept)
            yield "columns.results", size, results
            yield "columns.elements", size, terms * results
        else:
            yield "reduce.terms", size, terms
            yield "reduce.results", size, results
        return
    if name in ROW_OPS:
        axis = op["attrs"].get("axis", -1)
        n = first["shape"][axis]
        elements = math.prod(first["shape"])
        yield "rows.terms", size, n
        yield "rows.rows", size, elements // max(n, 1)
        yield "rows.elements", size, elements
        return
    if name == "mse_loss":
        yield "mse.elements", size, math.prod(first["shape"])
    elif name in RANDOM:
        yield "random.elements", size, math.prod(out["shape"])
    elif name in UPDATES:
        yield "update.elements", size, math.prod(out["shape"])
    elif name == "take_bwd":
        yield "take_bwd.terms", size, math.prod(op["inputs"][1]["shape"])
        yield "take_bwd.width", size, math.prod(out["shape"][1:])
    elif name in SCANS:
        yield "cumsum.terms", size, first["shape"][op["attrs"]["axis"]]
    elif name == "copy":
        shape, strides = _space(op)
        yield "copy.bytes", size, bytes_of(out) // max(shape[0] if shape else 1, 1)
        if shape:
            yield "copy.slices", size, shape[0]
        for step in strides:
            if len(step) > 1 and step[-1] > 1 and 1 in step:
                yield "copy.turned_rows", size, shape[step.index(1)]
                yield "copy.turned_row", size, shape[-1]
    elif name not in OTHERS:
        elements = math.prod(out["shape"])
        yield "program.elements", size, elements
        yield "program.elements_streamed", size, elements
        yield "program.bytes_streamed", size, bytes_of(out)
        shape, strides = _merged(*_space(op))
        if len(shape) > 1:
            yield "program.row", size, shape[-1]
        for step in strides:
            if len(step) > 1 and step[-1] > 1 and 1 in step:
                yield "program.turned_rows", size, shape[step.index(1)]
                yield "program.turned_row", size, shape[-1]
        moved = sum(map(bytes_of, [*op["inputs"], out]))
        yield "program.ns", size, moved * 0.1 + elements * 0.1


def _merged_last(view, kept):
    """The last kept axes that step as one."""
    width, step = 1, 1
    for d in reversed(kept):
        if view["strides"][d] != step:
            break
        width *= view["shape"][d]
        step *= view["shape"][d]
    return width


def _in_lines(view):
    """Whether the copy engine of a GPU reads an operand of a product: lines of whole 16 bytes."""
    *batch, rows, cols = view["strides"]
    inner, outer = min(rows, cols), max(rows, cols)
    return not batch and inner == 1 and outer % 8 == 0 and view.get("offset", 0) % 8 == 0


def covered(ops, backend="cpu"):
    """What of the table the ops meet: [index of the entry, side] each."""
    entries = collections.defaultdict(list)
    for at, (quantity, size, value) in enumerate(table(backend)):
        entries[quantity, size].append((at, value))
    hits = set()
    for op in ops:
        for quantity, size, value in measure(op):
            for at, threshold in entries.get((quantity, size), ()):
                side = side_of(quantity, value, threshold)
                if side is not None:
                    hits.add((at, side))
    return sorted(hits)
