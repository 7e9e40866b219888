"""How far each op's results lie from the exact ones, in units in the last place (ULP).

    python tests/accuracy.py [--exhaustive] [--jobs N] [--device cuda] [--out docs/accuracy.md]

--exhaustive takes all 2**32 float32 inputs of each unary op, in slices shared out to N processes;
what is done is kept in --keep FILE, so that a later call with the same build goes on from there.

An error is a distance of integers: how many numbers of the dtype lie between the result and the
float64 (for float64: long double) reference rounded to that dtype. NaN, infinities and the sign of
zero must agree, or the error counts as infinite.
"""

import argparse
import hashlib
import json
import math
import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

import aicf
import numpy as np
from compare import BITS, numpy_dtype, rounded, unit
from losses import FUNCTIONS, feed_of, given, graph_of
from op_cases import erf, gelu_erf, gelu_tanh, sigmoid, silu, softplus
from tensors import Layout, Tensor

SLOPE = float(np.float32(0.01))


class Op(NamedTuple):
    """A unary op: its reference, how many ULP each dtype is allowed, and where that holds."""

    reference: Callable
    f32: int
    half: int = 1
    f64: int = 2
    low: float = -np.inf  # inputs below are held to a relative error instead
    attrs: dict = {}  # noqa: RUF012
    long: Callable | None = None  # the reference in long double, where NumPy has the function
    zero_sign: bool = True


def long_erf(x):
    """A series without cancellation: 2/sqrt(pi) exp(-x^2) sum of 2^n x^(2n+1) / (2n+1)!!."""
    x = np.clip(x, -7, 7)
    term = total = x
    for n in range(1, 400):
        term = term * 2 * x * x / (2 * n + 1)
        total = total + term
    root = np.sqrt(np.arctan(np.longdouble(1)))  # sqrt(pi) / 2
    return np.exp(-x * x) * total / root


def long_sigmoid(x):
    return 1 / (1 + np.exp(-x))


def odd_silu(x):
    return odd_silu_of(x, x)


def long_gelu_erf(x):
    """Loses five bits above -2, where it is used."""
    return x * (1 + long_erf(x * np.sqrt(np.longdouble(0.5)))) / 2


def long_gelu_tanh(x):
    pi = 4 * np.arctan(np.longdouble(1))
    tenth = np.longdouble(44715) / 1000000
    return odd_silu_of(x, 2 * np.sqrt(2 / pi) * (x + tenth * x**3))


def odd_silu_of(x, u):
    """x sigmoid(u), and -0 at -inf."""
    return np.where(x == -np.inf, -0.0, x * long_sigmoid(u))


def elu(x):
    return np.where(x > 0, x, np.expm1(np.minimum(x, 1)))


OPS = {
    "neg": Op(np.negative, 0, 0, 0),
    "abs": Op(np.abs, 0, 0, 0),
    "floor": Op(np.floor, 0, 0, 0),
    "round": Op(np.rint, 0, 0, 0),
    "relu": Op(lambda x: np.where(x != x, x, np.maximum(x, 0)), 0, 0, 0, zero_sign=False),
    "leaky_relu": Op(lambda x: np.where(x > 0, x, SLOPE * x), 0, 0, 0, attrs={"slope": SLOPE}),
    "sqrt": Op(np.sqrt, 0, 0, 1, long=np.sqrt),  # the reference itself is rounded twice
    "exp": Op(np.exp, 1, long=np.exp),
    "log": Op(np.log, 1, long=np.log),
    "rsqrt": Op(lambda x: 1 / np.sqrt(x), 1, long=lambda x: 1 / np.sqrt(x)),
    "sin": Op(np.sin, 1, long=np.sin),
    "cos": Op(np.cos, 1, long=np.cos),
    "tanh": Op(np.tanh, 2, long=np.tanh),
    "erf": Op(erf, 2, long=long_erf),
    "sigmoid": Op(sigmoid, 2, long=long_sigmoid),
    "silu": Op(silu, 4, long=odd_silu),
    "softplus": Op(softplus, 4, long=lambda x: np.logaddexp(x, 0)),
    "elu": Op(elu, 4, long=elu),
    "gelu_erf": Op(gelu_erf, 16, f64=16, low=-2.0, long=long_gelu_erf),
    "gelu_tanh": Op(gelu_tanh, 16, f64=16, low=-2.0, long=long_gelu_tanh),
}
BINARY = {  # correctly rounded: float64 has more than twice the digits of float32
    "add": (np.add, 0),
    "sub": (np.subtract, 0),
    "mul": (np.multiply, 0),
    "div": (np.divide, 0),
    "pow": (np.power, 4),
}
TAIL = 4e-5  # relative error below `low`, while the result is a normal number


def run(op, arrays, dtype, device="cpu", attrs=None):
    """The op's result on arrays of one shape."""
    shape = arrays[0].shape
    ins = [Tensor(dtype, Layout.c_order(shape), device, x) for x in arrays]
    out = Tensor(dtype, Layout.c_order(shape), device)
    aicf.op_call(op, [t.give() for t in ins], [out.give()], attrs)
    return out.read()


def ordered(x):
    """Integers in the order of the floats, one apart for neighbours; both zeros are 0."""
    signed = x.view(f"i{x.itemsize}").astype(np.int64)
    least = np.int64(-(2 ** (8 * x.itemsize - 1)))
    return np.where(signed < 0, least - signed, signed)


def ulp_errors(got, want, zero_sign=True):
    """The distance of each result from the reference, already rounded; a clash counts as 2**62."""
    same = (got == want) | ((got != got) & (want != want))
    if zero_sign:
        same &= (want != 0) | (np.signbit(got) == np.signbit(want)) | (got != got)
    clash = (np.isnan(got) != np.isnan(want)) | ((got == want) & ~same)
    with np.errstate(all="ignore"):
        error = np.abs(ordered(got) - ordered(want))
    return np.where(same, 0, np.where(clash, np.int64(2**62), error))


def every_half(dtype):
    return np.arange(2**16, dtype=np.uint16).view(numpy_dtype(dtype))


SLICES, CHUNK = 256, 2**21


def slice_of(index):
    """The index-th of SLICES parts of all float32, a chunk at a time."""
    size = 2**32 // SLICES
    for start in range(index * size, (index + 1) * size, CHUNK):
        yield np.arange(start, start + CHUNK, dtype=np.uint32).view(np.float32)


def some_floats(dtype="float32", each=512, seed=0):
    """Numbers of every exponent and sign: the ends of each binade and random ones between."""
    rng = np.random.default_rng(seed)
    bits, _ = BITS[dtype]
    width = np.dtype(dtype).itemsize * 8
    heads = np.arange(2 ** (width - bits), dtype=np.uint64) << np.uint64(bits)
    tails = rng.integers(0, 2**bits, (len(heads), each), dtype=np.uint64)
    tails[:, :4] = [0, 1, 2**bits - 1, 2 ** (bits - 1)]
    values = (heads[:, None] | tails).reshape(-1)
    near = rng.uniform(-20, 20, 64 * each)
    return np.concatenate([values.astype(f"u{width // 8}").view(dtype), near.astype(dtype)])


def reference(op, x, dtype):
    with np.errstate(all="ignore"):
        return rounded(op.reference(x.astype(np.float64)), dtype).astype(numpy_dtype(dtype))


def worst(name, x, dtype, device="cpu"):
    """The largest error in ULP, the input it occurs at, and the largest relative tail error."""
    op = OPS[name]
    got, want = run(name, [x], dtype, device, op.attrs), reference(op, x, dtype)
    errors = ulp_errors(got, want, op.zero_sign)
    tail = (x < op.low) & (np.abs(want.astype(float)) >= 2.0 ** BITS[dtype][1])
    relative = 0.0
    if tail.any():
        exact = op.reference(x[tail].astype(np.float64))
        relative = float((np.abs(got[tail].astype(np.float64) - exact) / np.abs(exact)).max())
    errors = np.where(x < op.low, 0, errors)
    at = int(errors.argmax())
    return int(errors[at]), float(x[at]), relative


def worst_pairs(name, dtype="float32", device="cpu", count=2**20, seed=0):
    """The largest error of a binary op over random pairs: any bits, and of moderate size."""
    rng = np.random.default_rng(seed)
    fn, _ = BINARY[name]
    a, b = rng.integers(0, 2**32, (2, count), dtype=np.uint64).astype(np.uint32).view(np.float32)
    half = count // 2
    a[:half] = np.exp(rng.uniform(-20, 20, half)) * (
        1 if name == "pow" else rng.choice([-1, 1], half)
    )
    b[:half] = rng.uniform(-8, 8, half)
    got = run(name, [a, b], dtype, device)
    with np.errstate(all="ignore"):
        want = fn(a.astype(np.float64), b.astype(np.float64)).astype(np.float32)
    return int(ulp_errors(got, want).max())


def worst_long(name, device="cpu", each=24):
    """float64 against long double, where the library's results are of more digits."""
    op = OPS[name]
    x = some_floats("float64", each)
    x = x[np.abs(x) <= 2.0**40] if name in ("sin", "cos") else x
    with np.errstate(all="ignore"):
        want = op.long(x.astype(np.longdouble)).astype(np.float64)
    errors = ulp_errors(run(name, [x], "float64", device, op.attrs), want)
    # where long double itself overflows there is no reference
    usable = np.isfinite(want) & (x >= op.low)
    at = int(np.where(usable, errors, 0).argmax())
    return int(errors[at]), float(x[at])


class Worst(NamedTuple):
    """The largest error, the input it occurs at, and the largest relative error of the tail."""

    error: int = -1
    at: float = 0.0
    tail: float = 0.0

    def joined(self, other):
        error, at = max(self[:2], other[:2], key=lambda pair: pair[0])
        return Worst(error, at, max(self.tail, other.tail))


def slice_worst(name, index, device):
    """All inputs of a slice; of a binary op, random pairs."""
    if name in BINARY:
        return Worst(worst_pairs(name, device=device, seed=index))
    found = Worst()
    for x in slice_of(index):
        found = found.joined(Worst(*worst(name, x, "float32", device)))
    return found


def build_digest():
    """Of the kernels that are measured."""
    return hashlib.sha256(Path(aicf._core.__file__).read_bytes()).hexdigest()


# Started afresh, for a process that has used a GPU cannot be forked; each computes alone.
WORKER = {
    "mp_context": multiprocessing.get_context("spawn"),
    "initializer": aicf._core.set_num_threads,
    "initargs": (1,),
}


def read_kept(keep, device):
    """What earlier calls with this build have measured, by (op, slice)."""
    done = {}
    for line in keep.read_text().splitlines() if keep.exists() else []:
        record = json.loads(line)
        if record["build"] == build_digest() and record["device"] == device:
            done[record["op"], record["slice"]] = Worst(*record["worst"])
    return done


def every_float(device, jobs, keep, slices=range(SLICES)):
    """The worst of all slices by op; each result is kept as soon as it is there."""
    done = read_kept(keep, device)
    missing = [(op, i) for op in [*OPS, *BINARY] for i in slices if (op, i) not in done]
    print(f"{len(missing)} slices to measure, {len(done)} are kept in {keep}", flush=True)
    keep.parent.mkdir(parents=True, exist_ok=True)
    with keep.open("a") as file, ProcessPoolExecutor(jobs, **WORKER) as pool:
        running = {pool.submit(slice_worst, op, i, device): (op, i) for op, i in missing}
        for future in as_completed(running):
            op, index = running[future]
            done[op, index] = future.result()
            record = {"build": build_digest(), "device": device, "op": op, "slice": index}
            file.write(json.dumps(record | {"worst": done[op, index]}) + "\n")
            file.flush()
    found = {}
    for (op, _), one in done.items():
        found[op] = found.get(op, Worst()).joined(one)
    return found


def sample(device):
    """The same over numbers of every exponent and sign."""
    x = some_floats(each=4096)
    found = {name: Worst(*worst(name, x, "float32", device)) for name in OPS}
    for name in BINARY:
        found[name] = Worst(max(worst_pairs(name, device=device, seed=seed) for seed in range(4)))
    return found


def table(found, device):
    """The rows of docs/accuracy.md."""
    lines = [
        "| op | float32 | worst at | allowed | float16 | bfloat16 | float64 |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, op in OPS.items():
        error, at, _ = found[name]
        halves = [worst(name, every_half(d), d, device)[0] for d in ("float16", "bfloat16")]
        double = str(worst_long(name, device)[0]) if op.long else "–"
        cells = [
            f"`{name}`",
            f"{error}{'¹' if math.isfinite(op.low) else ''}",
            f"{at:.9g}" if error else "–",
            op.f32,
            *halves,
            double,
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    for name, (_, allowed) in BINARY.items():
        lines.append(f"| `{name}` | {found[name].error} | – | {allowed} | – | – | – |")
    return lines


# ---- losses, norms and the softmax family


class Found(NamedTuple):
    """The largest errors of a result and of the gradient of x."""

    value: float
    gradient: float


FAR = 1e4
COLUMNS = (("float32", 0.0), ("float32", FAR), ("float16", 0.0), ("bfloat16", 0.0))
# What is allowed of each column, twice: value and gradient.
LOSS_LIMITS = {
    "softmax": ((4, 8), (4, 8), (1.1, 2.5), (1.1, 2.5)),
    "log_softmax": ((4, 16), (4, 16), (1.1, 8), (1.1, 8)),
    "logsumexp": ((4, 8), (4, 8), (1.1, 1.1), (1.1, 1.1)),
    "var": ((8, 8), (64, 8), (1.1, 1.1), (1.1, 1.1)),
    "layer_norm": ((8, 16), (8e3, 16e3), (1.1, 4), (1.1, 4)),
    "rms_norm": ((8, 16), (8, 16), (1.1, 4), (1.1, 4)),
    "batch_norm": ((8, 16), (8e3, 16e3), (1.1, 4), (1.1, 4)),
    "cross_entropy": ((4, 8), (4, 8), (1.1, 1.1), (1.1, 1.1)),
    "nll_loss": ((4, 16), (4, 16), (2, 2), (2, 2)),
    "bce": ((8, 8), (8, 8), (1.1, 1.1), (1.1, 1.1)),
    "mse": ((8, 4), (8, 4), (1.1, 1.1), (1.1, 1.1)),
    "huber": ((8, 4), (8, 4), (1.1, 1.1), (1.1, 1.1)),
}


def loss_errors(name, dtype, shift, device="cpu", shape=(32, 200)):
    """In units of u at the largest element of what float64 gives of the same numbers."""
    x = np.random.default_rng(6).normal(0, 3, shape) + shift
    feed = given(name, feed_of(name, x), dtype)

    def results(kind, on):
        g = aicf.Graph(name)
        values = {k: g.input(k, v.shape, str(v.dtype)) for k, v in feed.items()}
        for key, value in graph_of(name, kind)(g, **values).items():
            g.output(key, value)
        outputs = g.compile(device=on)(**feed)
        return [outputs[key].numpy().astype(np.float64) for key in ("y", "d0")]

    pairs = zip(results(dtype, device), results("float64", "cpu"), strict=True)
    return Found(*(np.abs(a - b).max() / np.abs(b).max() / unit(dtype, True) for a, b in pairs))


def loss_table(device):
    """The rows of docs/accuracy.md."""
    lines = [
        "| | float32 | its gradient | x near 10⁴ | its gradient | float16 | its gradient "
        "| bfloat16 | its gradient |",
        "| --- |" + " ---: |" * 8,
    ]
    for name in FUNCTIONS:
        cells = [f"{v:.1f}" for c in COLUMNS for v in loss_errors(name, *c, device)]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return lines


TEXT = """# Accuracy

What `python tests/accuracy.py{flags}` measured: the largest error of each op in ULP, that is,
how many numbers of the dtype lie between the result and the exact one rounded.

- float32: {inputs};
- float16 and bfloat16: all 65,536 inputs;
- float64: numbers of every exponent against long double, sin and cos up to 2⁴⁰.

NaN, infinities and the sign of zero agree everywhere. References are float64, never another
framework's float32. A GPU gives the same bits in float32.

{rows}

¹ For x ≥ −2. Below, where the result is a normal number, the largest relative error is
{tails}; {tail:.0e} is allowed.

Sums in `tree` order stay within (log₂ n + 2)·u·Σ|x|, products and sums in `chain` order within
2·√K·u·(|A|·|B|); products of small integers are exact in every tile and layout.
`tests/test_accuracy.py` asserts all of this on a sample.

## Losses, norms and softmax

The largest error of a result and of its gradient, in units of u (half the distance of neighbours)
at the largest element, for 32 rows of 200 normal numbers of σ = 3 and their like around 10⁴; the
reference is float64 on the same numbers, which `tests/test_losses.py` holds against PyTorch's.

{losses}

- `cross_entropy` keeps a row's largest logit and the sum of exp(logit − largest) apart and, of
  16-bit logits, in float32: a large common part of the logits does not touch the sum's digits.
  Where such a part is added exactly, softmax, log_softmax, cross_entropy and nll_loss keep every
  bit of results and gradients; so do mse and huber losses where it is added to both operands.
- In 16 bits a loss, a norm, `var` and `logsumexp` are computed in float32 and rounded once; the
  gradients of softmax, log_softmax and the norms start from their rounded results.
- A norm of rows far from 0 has the rounding of their mean. Where the squares overflow (from
  1.8·10¹⁹ in float32) a norm is 0, and a layer_norm NaN where the sum of a row does, as PyTorch's
  float32 is.

## NaN, infinities and zeros

On every backend, in every mode; `tests/test_edges.py` and `tests/test_losses.py` assert each line.
Where nothing is said, a NaN operand makes a NaN, infinities give the limit, and PyTorch's float64
agrees.

| function | decided | PyTorch |
| --- | --- | --- |
| `relu(-0)` | +0 | −0 |
| `relu` at NaN | NaN; its gradient lets dy through | the same |
| `sign(NaN)`, and so the gradient of `abs` at NaN | NaN, as NumPy: no NaN is hidden | 0 |
| `elu` at NaN | NaN, and so its gradient | gradient dy |
| `leaky_relu`, `clip` at NaN | NaN; gradients slope·dy and 0 | the same |
| `silu`, `gelu` at −inf | −0, with a gradient of 0: the limits | NaN |
| `silu`, `gelu` at +inf | +inf, with a gradient of 1 | gradient NaN |
| `huber_loss` at distances of ±inf | inf, with the gradient ±delta | the same |
| `binary_cross_entropy_with_logits` at x = ±inf | the limit: 0, with gradients of 0, where the target is what x says, else inf | NaN |
| `softmax`, `log_softmax`, `cross_entropy` of a row of −inf alone, or with +inf | NaN | the same |
| attention, a row whose scores are all −inf (a mask hides everything) | 0; it takes and gives no gradient | the same |
| attention, a NaN key | spoils the rows that see it, not those it is hidden from | all rows |
| attention, a NaN or infinite value | spoils its column in every row, hidden or not: 0 · NaN | the same |
| `logsumexp` of large numbers | its gradient is exp(x − max) / sum | exp(x − result): off by 9·10⁻⁵ at 10⁴ in float32 |
| `logsumexp` of −inf alone | −inf, its gradient NaN | gradient 0 |
| `var` of a constant | 0 at any size, with a gradient of 0 | 0; float32 inf near 3·10³⁸ |
| `var` of a row with ±inf | NaN, and so its whole gradient | gradient ±inf at the others |
"""  # noqa: E501


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--exhaustive", action="store_true", help="all 2**32 float32 inputs")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--keep", type=Path, default=Path("build/accuracy.jsonl"))
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = options.device
    found = (
        every_float(device, options.jobs, options.keep) if options.exhaustive else sample(device)
    )
    rows = "\n".join(table(found, device))
    tails = [f"`{name}` {found[name].tail:.1e}" for name in OPS if math.isfinite(OPS[name].low)]
    print(rows, ", ".join(tails), sep="\n")
    inputs = "numbers of every exponent and sign, 4,096 of each; 4 Mi pairs for two operands"
    if options.exhaustive:
        inputs = "all 2³² inputs; 256 Mi pairs for two operands"
    flags = " --exhaustive" if options.exhaustive else ""
    losses = "\n".join(loss_table(device))
    print(losses)
    if options.out:
        text = TEXT.format(
            flags=flags, inputs=inputs, rows=rows, tails=", ".join(tails), tail=TAIL, losses=losses
        )
        options.out.write_text(text)


if __name__ == "__main__":
    main()
