"""What the programs of boundary_programs.py are made of: what they write to, sizes, operands and
chains of elementwise ops."""

import math

import aicf
import numpy as np
import op_cases
from boundary_shapes import HEAVY, ROLES_WORK
from compare import numpy_dtype

BUDGET = 1_200_000  # multiplications of a product
SHARED = 550_000  # from here on a product is shared out to threads


# ---- what a program writes to


def data_of(kind):
    """A function that draws an operand: (rng, shape, dtype) -> array."""
    name, _, count = kind.partition(":")

    def draw_data(rng, shape, dtype):
        if name == "below":
            return rng.integers(0, int(count), shape).astype(dtype)
        if dtype in op_cases.INTS:
            return rng.integers(0 if dtype == "uint8" else -90, 90, shape).astype(dtype)
        if name == "fan":
            bound = 1 / math.sqrt(shape[-1]) if len(shape) > 1 else 0.5
            values = rng.uniform(-bound, bound, shape)
        elif name == "positive":
            values = rng.uniform(0.5, 2, shape)
        else:
            values = rng.standard_normal(shape)
        return np.asarray(values).astype(numpy_dtype(dtype))

    return draw_data


class Recorder:
    """An aicf.Graph, and how its inputs and params are drawn."""

    def __init__(self, config):
        self.graph = aicf.Graph(config["family"])
        self.config = config
        self.inputs, self.params, self.outputs, self.leaves = {}, {}, set(), {}

    def input(self, name, shape, dtype="float32", data="normal"):
        self.inputs[name] = (tuple(shape), dtype, data_of(data))
        self.leaves[name] = self.graph.input(name, shape, dtype)
        return self.leaves[name]

    def param(self, name, shape, dtype="float32", data="fan"):
        self.params[name] = (tuple(shape), dtype, data_of(data))
        self.leaves[name] = self.graph.param(name, shape, dtype)
        return self.leaves[name]

    def dense(self, name, x, out, bias=True):
        weight = self.param(f"{name}.W", (out, x.shape[-1]), x.dtype)
        return aicf.linear(x, weight, self.param(f"{name}.b", (out,), x.dtype) if bias else None)

    def output(self, name, value):
        self.outputs.add(name)
        self.graph.output(name, value)

    def end(self, loss):
        if loss is None:
            return
        self.output("loss", loss)
        if self.config["ends"] == "train":
            self.graph.minimize(loss, OPTIMIZERS[self.config["optimizer"]]())
        elif self.config["ends"] == "gradients":
            wanted = {n: v for n, v in self.leaves.items() if v.dtype in FLOATS}
            grads = self.graph.backward(loss, list(wanted.values()))
            for name, value in wanted.items():
                self.output(f"d.{name}", grads[value])


FLOATS = ("float32", "float64", "float16", "bfloat16")
OPTIMIZERS = {
    "sgd": lambda: aicf.optim.SGD(lr=0.05),
    "momentum": lambda: aicf.optim.SGD(lr=0.05, momentum=0.9, weight_decay=0.01),
    "adam": lambda: aicf.optim.Adam(lr=0.01, eps=1e-2),
    "adamw": lambda: aicf.optim.AdamW(lr=0.01, eps=1e-2),
}


# ---- sizes


def product_sizes(rng, target, size):
    """m, n, k of a product that meets a target, and how B lies."""
    quantity, _, value, side = target or ("", 0, 0, 0)
    held, layout = {}, rng.pick("plain", "plain", "turned", "cut", "stepped", "paged")
    if quantity in ("gemm.rows", "gemm.columns", "gemm.terms"):
        held["mnk"["gemm.rows gemm.columns gemm.terms".split().index(quantity)]] = value + side
    elif quantity.startswith("roles."):  # large, and operands in lines of whole 16 bytes
        held = {"m": 264, "n": 264, "k": 72}
        held["mnk"["roles.rows roles.columns roles.terms".split().index(quantity)]] = value + side
        held["k" if quantity != "roles.terms" else "m"] = (
            -(-ROLES_WORK // (264 * (value + side)) // 8) * 8 + 8
        )
        layout = "plain" if quantity == "roles.terms" else "turned"
    elif quantity in ("gemm.strip", "gemm.panel"):
        held["k"] = int(rng.pick(64, 128))
        held["n"] = value // held["k"] + side
    elif quantity == "gemm.b_bytes":
        held["k"] = int(rng.pick(512, 1024))
        held["n"] = value // size // held["k"] + side
    elif quantity == "gemm.work":
        m, k = rng.pick((32, 64), (64, 32), (16, 128))
        held = {"m": m, "k": k, "n": value // (m * k) + side}
    elif quantity == "gemm.results":
        held = {"m": 8, "n": value // 8} if side == 0 else {"m": 1, "n": value + side}
    elif quantity == "gemm.ns":
        held = {"m": 16 + 16 * int(rng.integers(4)), "k": 64 + 16 * int(rng.integers(12))}
        fixed = 0.1 * size * held["m"] * held["k"]
        each = 0.04 * held["m"] * held["k"] + 0.1 * size * (held["m"] + held["k"])
        held["n"] = round((value - fixed) / each) + 2 * side
    elif quantity == "gemm.row_bytes":
        layout = "paged" if side == 0 else "paged+" if side > 0 else "paged-"
    sizes = {
        "m": held.get("m") or rng.near("gemm.rows", size, 200),
        "n": held.get("n") or rng.near("gemm.columns", size, 260),
        "k": held.get("k") or rng.near("gemm.terms", size, 600),
    }
    while math.prod(sizes.values()) > BUDGET and (free := [a for a in "mnk" if a not in held]):
        largest = max(free, key=sizes.get)
        if sizes[largest] == 1:
            break
        sizes[largest] = int(rng.integers(1, sizes[largest]))
    if "k" not in held and rng.integers(4) and math.prod(sizes.values()) < SHARED:
        k = -(-SHARED // (sizes["m"] * sizes["n"]))
        sizes["k"] = int(k + rng.integers(1, 40)) if k < 1200 else sizes["k"]
    return sizes["m"], sizes["n"], sizes["k"], layout


def base(rng, family, target, dtypes=("float32", "float32", "float32", "float64")):
    """What every configuration says."""
    dtype = str(rng.pick(*dtypes))
    if target:
        fits = {4: "float32", 8: "float64", 2: str(rng.pick("float16", "bfloat16"))}
        dtype = fits[target[1]]
    tolerance = {"float64": 1e-9, "float32": 3e-4, "float16": 3e-2, "bfloat16": 2e-1}[dtype]
    return {
        "family": family,
        "target": list(target) if target else None,
        "dtype": dtype,
        "ends": "forward",
        "optimizer": str(rng.pick(*OPTIMIZERS)),
        "replays": int(rng.integers(1, 4)),
        "tolerance": tolerance,
        "clearance": {"float64": 1e-12, "float32": 3e-5}.get(dtype, 0.05),
        "heavy": bool(target and target[0] in HEAVY),
    }


def size_of(dtype):
    return {"float64": 8, "int64": 8}.get(dtype, 4)


# ---- what programs share


def laid(g, f, name, shape, how, dtype, kind="input", data="normal"):
    """An operand of rank 2 or more that lies in one of several ways."""
    make = lambda s: getattr(g, kind)(name, s, dtype, data)  # noqa: E731
    *lead, rows, cols = shape
    if how == "turned":
        axes = [*range(len(lead)), len(lead) + 1, len(lead)]
        return f.permute(make((*lead, cols, rows)), axes)
    if how == "cut":
        return make((*lead, rows + 3, cols + 5))[..., 2 : rows + 2, 1 : cols + 1]
    if how.startswith("off"):  # by so many elements, in lines of whole 16 bytes
        begin = int(how[3:])
        return make((*lead, rows, -(-(cols + begin) // 8) * 8))[..., begin : begin + cols]
    if how == "stepped":
        return make((*lead, rows, 2 * cols))[..., ::2]
    if how.startswith("paged"):
        line = 4096 // size_of(dtype)
        wide = -(-(cols + 1) // line) * line + {"": 0, "+": 1, "-": -1}[how[5:]]
        return make((*lead, rows, wide))[..., :cols]
    return make(shape)


SOFT = ("tanh", "sigmoid", "silu", "sin", "softplus")
ACTIVATIONS = ("relu", *SOFT, "gelu", "clip")


def activate(f, name, x):
    if name == "clip":
        return f.clip(x, -1.0, 0.75)
    return getattr(f, name)(x)


def chain(f, g, x, steps, dtype):
    """Elementwise steps behind (or before) something: [kind, ...] each."""
    for n, (kind, *more) in enumerate(steps):
        if kind == "act":
            x = activate(f, more[0], x)
        elif kind == "scale":
            x = x * 0.75 - 0.25
        else:
            other = operand(f, g, f"{kind}{n}.{more[1]}", x.shape, more[0], dtype)
            x = x + other if kind == "add" else x * other if kind == "mul" else other - x
    return x


def operand(f, g, name, shape, how, dtype):
    """An operand that broadcasts to a shape: whole, a row, rows, a column, a number, or turned."""
    if how == "group":
        return g.input(name, shape[1:], dtype)
    if how == "row":
        return g.input(name, shape[-1:], dtype)
    if how == "column":
        return g.input(name, (*shape[:-1], 1), dtype)
    if how == "outer":
        return g.input(name, (shape[0], *[1] * (len(shape) - 1)), dtype)
    if how == "one":
        return g.input(name, (), dtype)
    if how != "whole" and len(shape) > 1:
        return laid(g, f, name, shape, how, dtype)
    return g.input(name, shape, dtype)


def steps(rng, most, name, hows=("row", "row", "column", "outer", "one", "whole", "turned", "cut")):
    """Random steps for chain()."""
    found = []
    for _ in range(int(rng.integers(0, most + 1))):
        kind = str(rng.pick("act", "add", "mul", "sub", "scale"))
        if kind == "act":
            found.append(["act", str(rng.pick(*ACTIVATIONS))])
        elif kind == "scale":
            found.append(["scale"])
        else:
            found.append([kind, str(rng.pick(*hows)), name])
    return found
