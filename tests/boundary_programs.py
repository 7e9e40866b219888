"""The families of graphs that tests/boundary.py draws: programs written once, for aicf and for
reference.py, and configurations that say everything about them."""

import math
from collections.abc import Callable
from typing import NamedTuple

import aicf
import numpy as np
import op_cases
from boundary_parts import (
    ACTIVATIONS,
    BUDGET,
    activate,
    base,
    chain,
    laid,
    product_sizes,
    size_of,
    steps,
)


class Family(NamedTuple):
    quantities: tuple[str, ...]
    draw: Callable  # (rng, target) -> configuration
    program: Callable  # (functions, graph, configuration) -> the loss, or None
    check: Callable | None = None  # (case, found): against float64, where no program does it


# ---- mlp


def draw_mlp(rng, target):
    c = base(rng, "mlp", target)
    size = size_of(c["dtype"])
    if target and target[0].startswith("gemm"):
        m, n, k, _ = product_sizes(rng, target, size)
    else:
        m, n, k, _ = product_sizes(rng, None, size)
    if target and target[0] == "update.elements":
        value = target[2] + target[3]
        n, k = (
            (value, 1) if value % 2 else (value // 64, 64) if value % 64 == 0 else (value // 2, 2)
        )
        m = int(rng.integers(1, 20))
    last = rng.near("gemm.columns", size, 40)
    if target and target[0] == "mse.elements":
        m, last = 256, target[2] // 256 if target[2] > 512 else 2
        m, k, n = m + target[3], 8, 9
        if target[3] and target[2] <= 512:
            m, last = target[2] + target[3], 1
    loss = "mse" if target and target[0] == "mse.elements" else str(rng.pick("mse", "labels"))
    widths = [n, last] if rng.integers(3) else [n, int(rng.integers(1, 40)), last]
    return c | {
        "ends": "train" if target and target[0] == "update.elements"
        else str(rng.pick("train", "gradients", "gradients", "forward")),
        "m": m, "k": k, "widths": widths, "loss": loss,
        "bias": bool(rng.integers(5)), "act": str(rng.pick(*ACTIVATIONS)),
        "norm": bool(rng.integers(4) == 0), "residual": bool(rng.integers(4) == 0),
    }  # fmt: skip


def mlp(f, g, c):
    x = g.input("x", (c["m"], c["k"]), c["dtype"])
    for i, width in enumerate(c["widths"]):
        before = x
        x = dense(f, g, f"{i}", x, width, c)
        if i + 1 < len(c["widths"]):
            x = activate(f, c["act"], x)
            if c["residual"] and before.shape == x.shape:
                x = x + before
            if c["norm"]:
                x = f.layer_norm(x, width, eps=0.1)
    g.output("y", x)
    if c["loss"] == "mse":
        return f.mse_loss(x, g.input("t", x.shape, c["dtype"]))
    return f.cross_entropy(x, g.input("t", x.shape[:1], "int64", f"below:{x.shape[1]}"))


def dense(f, g, name, x, width, c):
    weight = g.param(f"{name}.W", (width, x.shape[-1]), c["dtype"])
    return f.linear(x, weight, g.param(f"{name}.b", (width,), c["dtype"]) if c["bias"] else None)


# ---- products


def draw_product(rng, target):
    c = base(rng, "product", target, ("float32", "float32", "float64", "float16", "bfloat16"))
    m, n, k, layout = product_sizes(rng, target, size_of(c["dtype"]))
    batch = [] if m * n * k > BUDGET / 3 else rng.pick([], [], [2], [3, 2])
    if target and target[0] in ("gemm.work", "gemm.ns", "gemm.results"):
        batch = []
    swap = bool(rng.integers(6) == 0) and not target
    roles = bool(target) and target[0].startswith("roles.")
    drawn = c | {
        "ends": str(rng.pick("forward", "forward", "gradients")) if m * n * k < BUDGET
        else "forward",
        "m": m, "n": n, "k": k, "batch": list(batch), "shared_b": bool(rng.integers(2)),
        "a": str(rng.pick("plain", "plain", "turned", "cut", "stepped")), "b": layout,
        "before": steps(rng, 1, "p"), "after": steps(rng, 3, "e"), "swap": swap,
    }  # fmt: skip
    if roles:
        turned = target[0] == "roles.terms"
        drawn |= {"a": "turned" if turned else "plain", "batch": [], "before": []}
    return drawn


def product(f, g, c):
    lead = tuple(c["batch"])
    a = laid(g, f, "a", (*lead, c["m"], c["k"]), c["a"], c["dtype"])
    b = laid(
        g,
        f,
        "b",
        (() if c["shared_b"] else lead) + (c["k"], c["n"]),
        c["b"],
        c["dtype"],
        data="fan",
    )
    a = chain(f, g, a, c["before"], c["dtype"])
    y = chain(f, g, f.matmul(a, b), c["after"], c["dtype"])
    if c["swap"]:
        y = f.permute(y, [*range(len(lead)), len(lead) + 1, len(lead)])
    g.output("y", y)
    return f.mean(y * y) if c["ends"] != "forward" else None


# ---- convolutions


def draw_conv(rng, target):
    c = base(rng, "conv", target)
    quantity, _, value, side = target or ("", 0, 0, 0)
    size = size_of(c["dtype"])
    outs = value + side if quantity == "gemm.rows" else rng.near("gemm.rows", size, 64)
    places = value + side if quantity == "gemm.columns" else rng.near("gemm.columns", size, 260)
    terms = value + side if quantity == "gemm.terms" else rng.near("gemm.terms", size, 300)
    kernel = int(rng.pick(1, 3, 3, 5))
    depth = max(terms // kernel**2, 1)
    if quantity == "gemm.terms" and terms % kernel**2:
        kernel, depth = 1, terms
    rows = next(r for r in (8, 7, 5, 4, 3, 2, 1) if places % r == 0)
    while outs * places * depth * kernel**2 > BUDGET:
        if quantity != "gemm.rows" and outs > 4:
            outs //= 2
        elif quantity != "gemm.terms" and depth > 1:
            depth //= 2
        elif quantity != "gemm.columns" and places > 64:
            places //= 2
            rows = next(r for r in (8, 7, 5, 4, 3, 2, 1) if places % r == 0)
        else:
            break
    stride = 1 if quantity or kernel == 1 else int(rng.pick(1, 1, 2))
    groups = 2 if not quantity and depth % 2 == 0 and outs % 2 == 0 and rng.integers(3) == 0 else 1
    padding = int(rng.integers(0, 2)) if kernel > 1 else 0
    return c | {
        "ends": str(rng.pick("train", "gradients", "forward")),
        "n": int(rng.pick(1, 1, 2, 3)), "outs": outs, "depth": depth, "kernel": kernel,
        "rows": rows, "cols": places // rows, "stride": stride, "padding": padding,
        "groups": groups, "bias": bool(rng.integers(3)), "act": str(rng.pick(*ACTIVATIONS)),
        "pool": str(rng.pick("none", "none", "max", "avg")), "after": steps(rng, 1, "e"),
    }  # fmt: skip


def conv(f, g, c):
    side = [(n - 1) * c["stride"] + c["kernel"] - 2 * c["padding"] for n in (c["rows"], c["cols"])]
    padding = c["padding"] if min(side) > 0 else 0
    side = [n if padding == c["padding"] else n + 2 * c["padding"] for n in side]
    x = g.input("x", (c["n"], c["depth"], *side), c["dtype"])
    shape = (c["outs"], c["depth"] // c["groups"], c["kernel"], c["kernel"])
    bias = g.param("b", shape[:1], c["dtype"]) if c["bias"] else None
    w = g.param("w", shape, c["dtype"]) * (1.0 / math.sqrt(shape[1] * shape[2]))
    y = f.conv2d(x, w, bias, stride=c["stride"], padding=padding, groups=c["groups"])
    y = chain(f, g, activate(f, c["act"], y), c["after"], c["dtype"])
    if c["pool"] != "none" and min(y.shape[-2:]) > 1:
        y = (f.max_pool2d if c["pool"] == "max" else f.avg_pool2d)(y, 2)
    g.output("y", y)
    return f.mean(y * y)


# ---- attention


def draw_attention(rng, target):
    c = base(rng, "attention", target)
    quantity, _, value, side = target or ("", 0, 0, 0)
    size = size_of(c["dtype"])
    length = value + side if quantity == "gemm.rows" else rng.near("gemm.rows", size, 100)
    keys = (
        value + side if quantity in ("gemm.columns", "rows.terms")
        else rng.near("gemm.columns", size, 200)
    )  # fmt: skip
    width = value + side if quantity == "gemm.terms" else rng.near("gemm.terms", size, 70)
    held = {
        "gemm.rows": "length",
        "gemm.columns": "keys",
        "rows.terms": "keys",
        "gemm.terms": "width",
    }
    sizes = {"length": length, "keys": keys, "width": width}
    while math.prod(sizes.values()) > BUDGET / 2:
        free = [s for s in sizes if s != held.get(quantity)]
        largest = max(free, key=sizes.get)
        if sizes[largest] < 2:
            break
        sizes[largest] = int(rng.integers(1, sizes[largest]))
    heads = rng.pick([1], [2], [2, 2]) if math.prod(sizes.values()) < BUDGET / 4 else [1]
    return c | sizes | {
        "ends": str(rng.pick("gradients", "gradients", "forward", "train")), "heads": heads,
        "values": int(rng.pick(sizes["width"], rng.near("gemm.columns", size, 40))),
        # Rows of scores are those of a mask of numbers: others are not kept.
        "mask": "whole" if quantity == "rows.terms"
        else str(rng.pick("none", "none", "whole", "row", "causal")),
        "project": bool(rng.integers(3) == 0),
    }  # fmt: skip


def attention(f, g, c):
    lead, dtype = c["heads"], c["dtype"]
    q = g.input("q", (*lead, c["length"], c["width"]), dtype)
    k = g.input("k", (*lead, c["keys"], c["width"]), dtype)
    v = g.input("v", (*lead, c["keys"], c["values"]), dtype)
    if c["project"]:
        q = f.linear(
            q, g.param("q.W", (c["width"],) * 2, dtype), g.param("q.b", (c["width"],), dtype)
        )
    mask = None
    if c["mask"] in ("whole", "row"):
        mask = g.input("mask", (c["length"] if c["mask"] == "whole" else 1, c["keys"]), dtype)
    y = f.scaled_dot_product_attention(q, k, v, mask, c["mask"] == "causal")
    w = g.param("o.W", (c["values"], c["values"]), dtype)
    y = f.linear(y, w)
    g.output("y", y)
    return f.mean(y * y)


# ---- rows

ROW_FNS = ("softmax", "log_softmax", "layer_norm", "rms_norm", "cross_entropy", "logsumexp")


def draw_rows(rng, target):
    c = base(rng, "rows", target, ("float32", "float32", "float64", "float16", "bfloat16"))
    quantity, _, value, side = target or ("", 0, 0, 0)
    size = size_of(c["dtype"])
    n = rng.near("rows.terms", size, 1100)
    rows = rng.near("rows.rows", size, 40) if rng.integers(2) else int(rng.integers(1, 300))
    if quantity == "rows.terms":
        n = value + side
    elif quantity == "rows.rows":
        rows = value + side
    elif quantity == "rows.elements":
        n = int(rng.pick(32, 64, 128))
        rows = value // n + side
    if quantity != "rows.elements" and rows * n > 60_000:
        rows, n = (max(60_000 // n, 1), n) if quantity != "rows.rows" else (rows, 60_000 // rows)
    fn = str(rng.pick(*ROW_FNS[:5] if quantity else ROW_FNS))
    return c | {
        "ends": str(rng.pick("forward", "gradients")) if rows * n < 70_000 else "forward",
        "rows": rows, "n": n, "fn": fn, "lead": int(rng.pick(1, 1, 2)) if not quantity else 1,
        "first": bool(rng.integers(5) == 0) and fn in ("softmax", "log_softmax"),
        "before": steps(rng, 2, "p"), "after": steps(rng, 2, "e"),
        "lies": str(rng.pick("plain", "plain", "cut", "turned", "stepped")),
    }  # fmt: skip


def rows(f, g, c):
    shape = (c["rows"], c["n"]) if c["lead"] == 1 else (c["lead"], c["rows"], c["n"])
    if c["first"]:
        shape = (c["n"], c["rows"])
    fn = c["fn"]
    shape = shape[-2:] if fn == "cross_entropy" else shape
    x = laid(g, f, "x", shape, c["lies"], c["dtype"])
    x = chain(f, g, x, c["before"], c["dtype"])
    if fn in ("layer_norm", "rms_norm"):
        y = getattr(f, fn)(x, c["n"], g.input("w", (c["n"],), c["dtype"]), eps=0.1)
    elif fn == "cross_entropy":
        labels = g.input("t", shape[:1], "int64", f"below:{c['n']}")
        g.output("x", x)
        return f.cross_entropy(x, labels)
    elif fn == "logsumexp":
        y = f.logsumexp(x, -1)
    else:
        y = getattr(f, fn)(x, 0 if c["first"] else -1)
    y = chain(f, g, y, c["after"] if y.ndim > 1 else [], c["dtype"])
    g.output("y", y)
    return f.mean(y * y) if c["ends"] != "forward" else None


def draw_groups(rng, target):
    """Short rows in groups that share an operand: a group and a row are one run of elements, and
    a unit of work holds no whole number of groups by itself."""
    c = base(rng, "groups", target, ("float32", "float32", "float64", "float16", "bfloat16"))
    rows = int(rng.integers(2, 12))
    n = int(rng.integers(1, 127 // rows + 1))
    chains = {
        part: [[str(rng.pick("add", "mul", "sub")), "group", part], *steps(rng, 1, f"{part}1")]
        for part in ("before", "after")
    }
    if rng.integers(3) == 0:
        chains[str(rng.pick("before", "after"))] = []
    return c | chains | {
        "ends": str(rng.pick("forward", "gradients")),
        "rows": rows, "n": n, "fn": str(rng.pick(*ROW_FNS[:4])), "first": False, "lies": "plain",
        "lead": int(rng.integers(2, 20_000 // (rows * n) + 3)),
    }  # fmt: skip


# ---- reductions

REDUCERS = ("sum", "sum", "mean", "max", "min")


def draw_reduce(rng, target):
    c = base(rng, "reduce", target, ("float32", "float32", "float64", "float16", "bfloat16"))
    quantity, _, value, side = target or ("", 0, 0, 0)
    size = size_of(c["dtype"])
    columns = quantity.startswith("columns") or (not quantity and bool(rng.integers(2)))
    kind = "columns" if columns else "reduce"
    terms = rng.near(f"{kind}.terms", size, 9000)
    other = rng.near(
        "columns.width" if columns else "reduce.results", size, 1100 if columns else 40
    )
    outer = int(rng.pick(1, 1, 2, 3))
    if quantity.endswith(".terms"):
        terms = value + side
    elif quantity in ("columns.width", "reduce.results"):
        other = value + side
    elif quantity == "columns.results":
        outer, other, terms = 1, value + 16 * side, int(rng.integers(2, 24))
    elif quantity == "columns.elements":
        outer, other = 1, int(rng.pick(64, 128, 256))
        terms = value // other + side
    elif quantity == "reduce.streamed":
        outer, other, columns = 1, int(rng.pick(16, 1024, 2048)), bool(rng.integers(2))
        terms = value // other + side
    else:
        outer = 1 if quantity else outer
    if quantity.startswith(("columns.w", "columns.t", "reduce.re", "reduce.t")):
        outer = 1 if quantity == "reduce.results" or columns and rng.integers(2) else outer
    while terms * other * outer > 100_000 and not c["heavy"]:
        if outer > 1:
            outer = 1
        elif quantity.endswith((".terms", ".elements")) and other > 1:
            other = max(other // 2, 1)
        elif quantity in ("columns.width", "reduce.results", "columns.results", "") and terms > 1:
            terms = max(terms // 2, 1)
        else:
            break
    if quantity == "reduce.results":
        outer = 1
    return c | {
        "ends": str(rng.pick("forward", "forward", "gradients")) if not c["heavy"] else "forward",
        "shape": [outer, terms, other] if columns else [outer, other, terms],
        "axis": 1 if columns else 2,
        "all": not columns and not quantity and bool(rng.integers(4) == 0),
        "fn": str(rng.pick(*REDUCERS)), "before": [] if c["heavy"] and rng.integers(2) else
        steps(rng, 2, "p"), "after": steps(rng, 2, "e"), "keep": bool(rng.integers(3) == 0),
        "lies": str(rng.pick("plain", "plain", "plain", "cut", "stepped")) if not columns
        else str(rng.pick("plain", "plain", "cut")),
    }  # fmt: skip


def reduce(f, g, c):
    x = laid(g, f, "x", tuple(c["shape"]), c["lies"] if not c["heavy"] else "plain", c["dtype"])
    x = chain(f, g, x, c["before"], c["dtype"])
    y = getattr(f, c["fn"])(x, (0, 1, 2) if c["all"] else c["axis"], keepdims=c["keep"])
    y = chain(f, g, y, c["after"] if y.ndim > 1 else [], c["dtype"])
    g.output("y", y)
    return f.mean(y * y) if c["ends"] != "forward" else None


# ---- elementwise programs


def draw_pointwise(rng, target):
    c = base(rng, "pointwise", target, ("float32", "float32", "float64", "float16", "bfloat16"))
    quantity, _, value, side = target or ("", 0, 0, 0)
    size = size_of(c["dtype"])
    n, m = rng.near("program.row", size, 5000), int(rng.integers(1, 40))
    lies = str(rng.pick("plain", "plain", "turned", "cut", "stepped"))
    after = steps(rng, 6, "e")
    if quantity == "program.elements":
        m, n = 1, value + side
    elif quantity == "program.row":
        n, m = value + side, max(m, 2)
        after = [["add", "row", "t"], *after]
    elif quantity.startswith("program.turned"):
        lies = "turned"
        m, n = int(rng.integers(16, 60)), int(rng.integers(130, 700))
        m, n = (value + side, n) if quantity.endswith("rows") else (m, value + side)
        after = [["add", "whole", "t"], *after]
    elif quantity == "program.ns":
        n = 256 if size == 4 else 250
        m, lies = round(value / ((3 * size + 1) * 0.1) / n) + side, "plain"
        after = [["add", "whole", "t"], *after[:1]]
    elif quantity == "program.elements_streamed":
        m, n, lies, after = value // 2048 + side, 2048, "plain", [["act", "relu"], *after[:1]]
    elif quantity == "program.bytes_streamed":
        m, n = value // size // 2048 + side, 2048
        lies, after = "plain", [["add", "row", "t"], *after[:1]]
    if m * n > 60_000 and not c["heavy"]:
        m = max(60_000 // n, 1)
    return c | {
        "shape": [m, n], "lies": lies, "after": after,
        "lead": not quantity and bool(rng.integers(4) == 0),
        "twice": bool(rng.integers(2)) and not c["heavy"],
    }  # fmt: skip


def pointwise(f, g, c):
    shape = (2, *c["shape"]) if c["lead"] else tuple(c["shape"])
    x = laid(g, f, "x", shape, c["lies"], c["dtype"])
    y = chain(f, g, x, c["after"] or [["act", "tanh"]], c["dtype"])
    g.output("y", y)
    if c["twice"]:
        g.output("z", y * x + y)


# ---- copies, rows of tables, random numbers

MOVES = ("permute", "concat", "pad", "cut", "cumsum", "take", "dropout", "broadcast")


def draw_movement(rng, target):
    c = base(rng, "movement", target)
    quantity, _, value, side = target or ("", 0, 0, 0)
    m, n = rng.near("copy.turned_rows", size_of(c["dtype"]), 40), int(rng.integers(1, 300))
    fn = str(rng.pick(*MOVES))
    if quantity.startswith("copy"):
        fn = "permute"
        if quantity == "copy.turned_row":
            m, n = int(rng.integers(2, 60)), value + side
        elif quantity in ("copy.turned_rows", "copy.slices"):
            m, n = value + side, int(rng.integers(2, 90))
        else:
            m, n = int(rng.integers(2, 9)), value // size_of(c["dtype"]) + 16 * side
    elif quantity == "cumsum.terms":
        fn, m, n = "cumsum", int(rng.integers(1, 9)), value + side
    elif quantity == "random.elements":
        fn, m, n = "dropout", 1, value + side
    elif quantity.startswith("take_bwd"):
        fn = "take"
        m, n = int(rng.integers(1, 50)), int(rng.integers(1, 60))
        if quantity == "take_bwd.width":
            n = value + side
    count = value + side if quantity == "take_bwd.terms" else int(rng.integers(1, 600))
    if count * n > 60_000 and fn == "take":
        if quantity == "take_bwd.terms":
            n = 60_000 // count
        else:
            count = 60_000 // n
    ends = str(rng.pick("forward", "gradients"))
    return c | {
        "ends": {"take": "gradients", "dropout": "forward"}.get(fn, ends),
        "shape": [m, n], "fn": fn, "count": count,
        "lead": int(rng.pick(1, 1, 2, 3)) if not quantity else 1,
        "before": steps(rng, 1, "p"), "after": steps(rng, 1, "e"),
        "low": int(rng.integers(0, 20)), "high": int(rng.integers(0, 20)),
    }  # fmt: skip


def movement(f, g, c):
    m, n = c["shape"]
    fn, dtype = c["fn"], c["dtype"]
    if fn == "take":
        table_ = g.param("w", (m, n), dtype)
        y = f.embedding(g.input("i", (c["count"],), "int32", f"below:{m}"), table_)
        y = chain(f, g, y, c["after"], dtype)
        g.output("y", y)
        return f.mean(y * y)
    if fn == "dropout":
        y = aicf.dropout(g.input("x", (m, n), dtype), 0.3) if f is aicf else None
        if f is aicf:
            g.output("random", y * 1.5)
        return None
    if fn == "permute":
        # Stored turned, and wanted as an output of its own storage.
        x = g.input("x", (n, m) if c["lead"] == 1 else (c["lead"], n, m), dtype)
        y = f.permute(x, [*range(x.ndim - 2), x.ndim - 1, x.ndim - 2])
        g.output("turned", y)
        return f.mean(y * y) if c["ends"] != "forward" else None
    x = chain(f, g, g.input("x", (m, n), dtype), c["before"], dtype)
    if fn == "concat":
        y = f.concat([x, g.input("z", (m, c["low"] + 1), dtype), x], 1)
    elif fn == "pad":
        y = f.pad(x, [(c["low"], 1), (0, c["high"])], 0.5)
    elif fn == "cut":
        y = f.concat([x[:, n // 3 :], x[:, : n // 3]], 1)
    elif fn == "cumsum":
        y = f.cumsum(f.permute(x, [1, 0]), 0) if c["low"] % 2 else f.cumsum(x, 1)
    else:
        y = f.broadcast_to(f.reshape(x, [m, 1, n]), [m, 3, n])
    y = chain(f, g, y, c["after"], dtype)
    g.output("y", y)
    return f.mean(y * y) if c["ends"] != "forward" else None


# ---- values that several steps read

REUSES = (
    "act", "act", "two", "two", "vector", "soft", "norm", "fold", "across", "cast", "product"
)  # fmt: skip
LIES = ("plain", "plain", "off1", "off2", "off4", "off8", "cut", "turned", "stepped")


def draw_reuse(rng, target):
    """Any value may be read before and after rows, sums and products that it goes into."""
    c = base(rng, "reuse", target, ("float32", "float32", "bfloat16", "float16", "float64"))
    size = size_of(c["dtype"])
    n = rng.near("rows.terms", size, 2100 if rng.integers(3) else 150)
    rows = rng.near("rows.rows", size, 40) if rng.integers(2) else int(rng.integers(1, 300))
    drawn = []
    for there in range(2, 2 + int(rng.integers(2, 8))):
        x, y = (int(rng.integers(max(there - 4, 0), there)) for _ in "xy")
        drawn.append([str(rng.pick(*REUSES)), x, y, int(rng.integers(12)), bool(rng.integers(4))])
    return c | {
        "ends": str(rng.pick("forward", "gradients")), "rows": min(rows, max(40_000 // n, 1)),
        "n": n, "lies": [str(rng.pick(*LIES)) for _ in range(2 + len(drawn))], "steps": drawn,
    }  # fmt: skip


def reuse(f, g, c):
    n, dtype = c["n"], c["dtype"]
    shape = (c["rows"], n)
    values = [laid(g, f, f"x{i}", shape, c["lies"][i], dtype) for i in range(2)]
    for at, (kind, first, second, which, inner) in enumerate(c["steps"]):
        x, y = values[first], values[second]
        how = c["lies"][2 + at]
        if kind == "act":
            x = activate(f, ACTIVATIONS[which % len(ACTIVATIONS)], x)
        elif kind == "two":
            x = (x + y, x * y, x - y, f.maximum(x, y))[which % 4]
        elif kind == "vector":
            lines = [shape, (c["rows"], 1), (n,), (n,)][which % 4]
            w = laid(g, f, f"v{at}", lines if len(lines) > 1 else (1, n), how, dtype)
            x = (x + w, x * w, w - x)[which % 3]
        elif kind == "soft":
            x = (f.softmax, f.log_softmax)[which % 2](x, -1 if which < 10 else 0)
        elif kind == "norm":
            w = [f.reshape(laid(g, f, f"w{at}", (1, n), how, dtype), (n,))] if which % 3 else []
            x = (f.layer_norm, f.rms_norm)[which % 2](x, n, *w)
        elif kind in ("fold", "across"):
            reduced = getattr(f, REDUCERS[which % 5])(x, -1 if kind == "fold" else 0, keepdims=True)
            if which % 2:
                g.output(f"r{at}", reduced)
            x = (x - reduced, reduced * y, f.relu(reduced) + y)[which % 3]
        elif kind == "cast":
            other = f.cast(x, "float32" if dtype != "float32" else "bfloat16")
            g.output(f"c{at}", other)
            x = f.cast(f.tanh(other), dtype)
        elif n <= 150:
            x = f.matmul(x, laid(g, f, f"m{at}", (n, n), how, dtype, data="fan")) + y
        values.append(x)
        if not inner:
            g.output(f"y{at}", x)
    g.output("y", values[-1])
    if c["ends"] == "forward":
        return None
    read = {first for _, first, *_ in c["steps"]}
    ends = [v for i, v in enumerate(values) if i not in read or i + 1 == len(values)]
    loss = f.mean(ends[-1] * ends[-1])
    for value in [*ends[:-1], *values[:2]]:
        loss = loss + f.sum(value) * 0.5
    return loss


def check_bits_alone(case, found):
    """Of long programs in 16 bits float64 says little; they are as without passes."""


# ---- every op of the table, one axis long

LONG = (8, 16, 64, 128, 256, 512)


def draw_ops(rng, target):
    case = rng.pick(*op_cases.CASES)
    dtype = str(rng.pick(*case.dtypes))
    letters = sorted({letter for arg in case.args for letter in arg.dims})
    sizes = dict(op_cases.SIZES)
    if letters:
        sizes[str(rng.pick(*letters))] = int(rng.pick(*LONG) + rng.integers(-1, 2))
    try:
        ops_graph(case, dtype, sizes)
    except aicf.Error:  # the row holds for its own sizes alone
        sizes = dict(op_cases.SIZES)
    return base(rng, "ops", None) | {"case": case.id, "dtype": dtype, "sizes": sizes}


def ops_graph(case, dtype, sizes):
    from test_ops import arg_dtype, as_list  # by way of much that other families do without

    g = aicf.Graph("ops")
    shapes = [tuple(sizes[letter] for letter in arg.dims) for arg in case.args]
    values = [
        g.input(f"x{i}", shape, arg_dtype(arg, dtype))
        for i, (arg, shape) in enumerate(zip(case.args, shapes, strict=True))
    ]
    return as_list(case.build(g, *values))


def ops_case(c):
    return next(case for case in op_cases.CASES if case.id == c["case"])


def ops(f, g, c):
    from test_ops import arg_dtype, as_list
    from test_ops import draw as draw_operand

    case = ops_case(c)
    values = []
    for i, arg in enumerate(case.args):
        shape = tuple(c["sizes"][letter] for letter in arg.dims)
        values.append(g.input(f"x{i}", shape, arg_dtype(arg, c["dtype"])))
        drawn = lambda rng, s, d, arg=arg: draw_operand(arg, c["dtype"], c["sizes"], rng)  # noqa: E731
        g.inputs[f"x{i}"] = (*g.inputs[f"x{i}"][:2], drawn)
    for i, y in enumerate(as_list(case.build(g.graph, *values))):
        g.output(f"y{i}", y)


def check_ops(case, found):
    from test_ops import check_case

    row = ops_case(case.config)
    arrays = [case.feeds[0][f"x{i}"] for i in range(len(row.args))]
    got = [found[f"first y{i}"] for i in range(len(case.recorder.outputs))]
    if row.id in ("Sum-int", "CumSum-int") and int(arrays[0].sum()) > np.iinfo(got[0].dtype).max:
        return  # it wraps around, which float64 does not
    check_case(row, case.config["dtype"], arrays, got, row.id)


GEMM = ("gemm.rows", "gemm.columns", "gemm.terms")
FAMILIES = {
    "mlp": Family(
        (*GEMM, "gemm.work", "gemm.ns", "update.elements", "mse.elements"), draw_mlp, mlp
    ),
    "product": Family(("gemm.", "roles."), draw_product, product),
    "conv": Family(GEMM, draw_conv, conv),
    "attention": Family((*GEMM, "rows.terms"), draw_attention, attention),
    "rows": Family(("rows.",), draw_rows, rows),
    "groups": Family(("none",), draw_groups, rows),
    "reduce": Family(("reduce.", "columns."), draw_reduce, reduce),
    "pointwise": Family(("program.",), draw_pointwise, pointwise),
    "movement": Family(("copy.", "random.", "take_bwd.", "cumsum."), draw_movement, movement),
    "ops": Family(("none",), draw_ops, ops, check_ops),
    "reuse": Family(("none",), draw_reuse, reuse, check_bits_alone),
}
