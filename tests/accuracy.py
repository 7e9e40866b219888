"""How far each op's results lie from the exact ones, in units in the last place (ULP).

    python tests/accuracy.py [--exhaustive] [--jobs N] [--device cuda] [--out docs/accuracy.md]

--exhaustive takes all 2**32 float32 inputs of each unary op, in slices shared out to N processes;
what is done is kept in --keep FILE, so that a later call with the same build goes on from there.

An error is a distance of integers: how many numbers of the dtype lie between the result and the
float64 reference rounded to that dtype. NaN, infinities and the sign of zero must agree, or the
error counts as infinite. exact64.py does the same for float64.
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
KEPT64 = Path(__file__).parent / "data" / "float64.json"  # what exact64.py has measured


class Op(NamedTuple):
    """A unary op: its reference, how many ULP each dtype is allowed, and where that holds."""

    reference: Callable
    f32: int
    half: int = 1
    low: float = -np.inf  # inputs below are held to a relative error instead
    attrs: dict = {}  # noqa: RUF012
    zero_sign: bool = True


def elu(x):
    return np.where(x > 0, x, np.expm1(np.minimum(x, 1)))


OPS = {
    "neg": Op(np.negative, 0, 0),
    "abs": Op(np.abs, 0, 0),
    "floor": Op(np.floor, 0, 0),
    "round": Op(np.rint, 0, 0),
    "relu": Op(lambda x: np.where(x != x, x, np.maximum(x, 0)), 0, 0, zero_sign=False),
    "leaky_relu": Op(lambda x: np.where(x > 0, x, SLOPE * x), 0, 0, attrs={"slope": SLOPE}),
    "sqrt": Op(np.sqrt, 0, 0),
    "exp": Op(np.exp, 1),
    "log": Op(np.log, 1),
    "log1p": Op(np.log1p, 1),
    "expm1": Op(np.expm1, 1),
    "exp2": Op(np.exp2, 1),
    "log2": Op(np.log2, 1),
    "log10": Op(np.log10, 1),
    "tan": Op(np.tan, 1),
    "asin": Op(np.arcsin, 1),
    "acos": Op(np.arccos, 1),
    "atan": Op(np.arctan, 1),
    "sinh": Op(np.sinh, 1),
    "cosh": Op(np.cosh, 1),
    "asinh": Op(np.arcsinh, 1),
    "acosh": Op(np.arccosh, 1),
    "atanh": Op(np.arctanh, 1),
    "rsqrt": Op(lambda x: 1 / np.sqrt(x), 1),
    "sin": Op(np.sin, 1),
    "cos": Op(np.cos, 1),
    "tanh": Op(np.tanh, 1),
    "erf": Op(erf, 2),
    "sigmoid": Op(sigmoid, 1),
    "silu": Op(silu, 4),
    "softplus": Op(softplus, 4),
    "elu": Op(elu, 4),
    "gelu_erf": Op(gelu_erf, 16, low=-2.0),
    "gelu_tanh": Op(gelu_tanh, 16, low=-2.0),
}
BINARY = {  # correctly rounded: float64 has more than twice the digits of float32
    "add": (np.add, 0),
    "sub": (np.subtract, 0),
    "mul": (np.multiply, 0),
    "div": (np.divide, 0),
    "pow": (np.power, 4),
    "atan2": (np.arctan2, 1),
    "hypot": (np.hypot, 1),
    "fmod": (np.fmod, 0),
    "floor_divide": (np.floor_divide, 0),
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
def one_thread():
    aicf.set_num_threads(1)


WORKER = {"mp_context": multiprocessing.get_context("spawn"), "initializer": one_thread}


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
        "| op | float32 | worst at | allowed | float16 | bfloat16 |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, op in OPS.items():
        error, at, _ = found[name]
        halves = [worst(name, every_half(d), d, device)[0] for d in ("float16", "bfloat16")]
        cells = [
            f"`{name}`",
            f"{error}{'¹' if math.isfinite(op.low) else ''}",
            f"{at:.9g}" if error else "–",
            op.f32,
            *halves,
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    for name, (_, allowed) in BINARY.items():
        lines.append(f"| `{name}` | {found[name].error} | – | {allowed} | – | – |")
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


# ---- float64


def table64():
    """The rows of float64, as exact64.py has kept them."""
    lines = ["| op | float64 | worst at | allowed |", "| --- | ---: | ---: | ---: |"]
    kept = json.loads(KEPT64.read_text())
    for name, row in kept["ops"].items():
        at = ", ".join(f"{x:.17g}" for x in row["at"])
        lines.append(f"| `{name}` | {row['error']:.3f} | {at} | {row['allowed']} |")
    return "\n".join(lines), f"{kept['inputs']:,} inputs of each, seed {kept['seed']}"


TEXT = """# Accuracy

What `python tests/accuracy.py{flags}` measured: the largest error of each op in ULP, that is,
how many numbers of the dtype lie between the result and the exact one rounded.

- float32: {inputs};
- float16 and bfloat16: all 65,536 inputs.

NaN, infinities and the sign of zero agree everywhere. References are float64, never another
framework's float32. Every function has the same bits in all instruction sets and on a GPU.

{rows}

¹ For x ≥ −2. Below, where the result is a normal number, the largest relative error is
{tails}; {tail:.0e} is allowed.

What `python tests/exact64.py --keep` measured in float64, {count}:
the largest distance from the exact result in spacings of the float64 there. Half of the inputs are
any bits, so of every exponent; the rest lie where the op varies and beside special points:
thresholds, ends of the range, the float64 nearest to multiples of π/2. The exact results have at
least 60 bits, which the tests hold against 400. Of a derivative an error counts in units of its
largest term.

{rows64}

Sums in `tree` order stay within (log₂ n + 2)·u·Σ|x|. Products and sums of K terms in `chain` order
stay within (min(K, 256) + ⌈K / 256⌉ − 1)·u·(|A|·|B|), to first order in u, whatever the numbers: one
row of a 1 and 255 times 0.50001·2⁻²³ comes near it. Where roundings are independent, as those of
random numbers are, they stay within 2·√K·u·(|A|·|B|). Products of small integers are exact in every
tile and layout.
`tests/test_accuracy.py` asserts all of this on a sample.

Attention on tensor cores rounds its weights, powers of two, to 16 bits. What is rounded has a
relative error of at most 2⁻¹³·¹ for bfloat16 and 2⁻¹⁶ for float16: about 3 percent of what the
rounding itself may add (`tests/test_attention.py`).

## Losses, norms and softmax

The largest error of a result and of its gradient, in units of u (half the distance of neighbours)
at the largest element, for 32 rows of 200 normal numbers of σ = 3 and their like around 10⁴; the
reference is float64 on the same numbers, which `tests/test_losses.py` holds against PyTorch's.

{losses}

- `cross_entropy` keeps a row's largest logit and the sum of exp(logit − largest) apart and, of
  16-bit logits, in float32: a large common part of the logits does not touch the sum's digits.
  Where such a part is added exactly in float32 and float64, softmax, log_softmax, cross_entropy
  and nll_loss keep every bit of results and gradients; so do mse and huber losses where it is added
  to both operands.
- In 16 bits exponentials of softmax and losses are 2^(x log₂e − M) for a whole number M near the
  largest element's (`src/core/abi/softmax.h`), to 2 ULP of float32 and a common factor, which is
  gone from the quotients. A common part of the elements moves these by less than 10⁻⁶ of
  themselves before they are rounded to 16 bits. An element 86.5 or more below its row's largest
  counts as 0 there: e^−86.5 is 2.7·10⁻³⁸.
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
        rows64, count = table64()
        text = TEXT.format(
            flags=flags,
            inputs=inputs,
            rows=rows,
            tails=", ".join(tails),
            tail=TAIL,
            rows64=rows64,
            count=count,
            losses=losses,
        )
        options.out.write_text(text)


if __name__ == "__main__":
    main()
