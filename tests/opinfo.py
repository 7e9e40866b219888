"""How many of PyTorch's own op samples aicf computes, and how many of its functions it has.

    python tests/opinfo.py [op ...] [--why] [--each N] [--json FILE]

Needs torch and expecttest. Each sample of PyTorch's op tests becomes a graph whose tensors are
inputs and whose other arguments are passed on as they are; shape, dtype and values of the results
are compared, in float64 (in float32 or integers where an op has no float64). A sample is `right`,
`refused` with an aicf.Error, `unsaid` where there is no function of that meaning or `opinfo_names`
cannot pass the arguments on, or `wrong`. Of what is drawn, shape and dtype alone are compared.
"""

import argparse
import collections
import json
import sys
import warnings

import aicf
import numpy as np
from opinfo_names import EXCLUDED, meaning_of, random
from opinfo_said import flat

BOUNDS = {"float64": 2e-7, "float32": 2e-5, "float16": 2e-3}
TIES = ("argsort", "kthvalue", "sort", "topk")  # PyTorch's places of equal numbers are any
OUTCOMES = ("right", "refused", "unsaid", "wrong")


class Feed:
    """Makes the inputs of a graph of the tensors among a sample's arguments."""

    def __init__(self, torch, g):
        self.torch, self.g, self.arrays = torch, g, {}
        g.given = {}

    def __call__(self, x):
        if isinstance(x, self.torch.Tensor):
            if x.is_complex() or x.is_sparse:
                raise aicf.DTypeError(f"feed: {x.dtype} has no counterpart")
            name = f"x{len(self.arrays)}"
            dtype = str(x.dtype).removeprefix("torch.")
            value = self.g.input(name, tuple(x.shape), dtype)
            self.arrays[name] = self.g.given[value.id] = x.detach()
            return value
        if isinstance(x, self.torch.dtype):
            return str(x).removeprefix("torch.")
        if type(x) in (list, tuple):
            return type(x)([self(part) for part in x])
        if isinstance(x, dict):
            return {key: self(part) for key, part in x.items()}
        return x


def run(torch, op, sample, dtype=None):
    """One of OUTCOMES, and why."""
    fn = meaning_of(op.name)
    if fn is None:
        return "unsaid", "no function of that meaning"
    g = aicf.Graph("sample")
    feed = Feed(torch, g)
    try:
        values = fn(
            *([g] if hasattr(fn, "of_graph") else ()),
            feed(sample.input),
            *feed(sample.args),
            **feed(sample.kwargs),
        )
        values = flat(values)
        for i, value in enumerate(values):
            g.output(f"y{i}", value)
        step = g.compile(device="cpu")
        got = step(**feed.arrays)
        arrays = [torch.from_dlpack(got[f"y{i}"]) for i in range(len(values))]
    except aicf.Error as error:
        return "refused", f"{type(error).__name__}: {error}"
    except (TypeError, ValueError, AttributeError, IndexError) as error:
        return "unsaid", f"{type(error).__name__}: {error}"
    wanted = flat(op.op(sample.input, *sample.args, **sample.kwargs))
    wanted = [torch.tensor(x) if isinstance(x, bool) else x for x in wanted]
    wanted = [x for x in wanted if isinstance(x, torch.Tensor)]
    if len(wanted) != len(arrays):
        return "wrong", f"{len(arrays)} results, and PyTorch has {len(wanted)}"
    # PyTorch computes what a float32 tensor has a part in, weights say, in float32.
    narrow = any(x.dtype == torch.float32 for x in feed.arrays.values())
    narrowest = "float32" if narrow else "float64"
    for have, want in zip(arrays, wanted, strict=True):
        want = want.detach().resolve_conj()
        if have.shape != want.shape:
            return "wrong", f"shape {tuple(have.shape)}, and PyTorch's is {tuple(want.shape)}"
        if have.dtype != want.dtype and dtype is not None:
            return "unsaid", f"PyTorch goes on to {want.dtype}"
        if have.dtype != want.dtype:
            return "wrong", f"dtype {have.dtype}, and PyTorch's is {want.dtype}"
        if random(op.name, sample) or (
            dtype is not None and op.name in TIES and have is arrays[-1]
        ):
            continue
        have, want = (x.float() if x.dtype == torch.bfloat16 else x for x in (have, want))
        have, want = have.numpy(), want.numpy()
        if want.dtype.kind == "f":
            size = np.abs(want[np.isfinite(want)]).max(initial=1e-30)
            bound = BOUNDS[narrowest if want.dtype == np.float64 else want.dtype.name]
            close = np.isclose(have, want, rtol=bound, atol=bound * size, equal_nan=True)
        else:
            close = have == want
        if not np.all(close):
            return "wrong", f"{np.count_nonzero(~close)} of {close.size} elements differ"
    return "right", "by shape and dtype" if random(op.name, sample) else ""


def samples_of(torch, op, each, dtype=None):
    """An op's samples in a dtype; where none is said in float64, or the first that it has."""
    first = (torch.float64, torch.float32, torch.int64, torch.bool)
    for one in (getattr(torch, dtype),) if dtype else first:
        if one in op.dtypes:
            torch.manual_seed(0)
            np.random.seed(0)
            made = list(op.sample_inputs("cpu", one, requires_grad=False))
            return made[:: max(1, len(made) // each)][:each] if each else made
    return []


def count(only=(), each=0, dtype=None):
    """Rows {name, right, refused, unsaid, wrong, why} of ops with a meaning here."""
    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    warnings.filterwarnings("ignore")
    rows = []
    for op in op_db:
        if (only and op.name not in only) or op.name in EXCLUDED:
            continue
        row = collections.Counter()
        why = collections.Counter()
        for sample in samples_of(torch, op, each, dtype):
            outcome, reason = run(torch, op, sample, dtype)
            row[outcome] += 1
            if reason:
                why[f"{outcome}: {reason.splitlines()[0][:140]}"] += 1
        rows.append({"name": op.name + op.variant_test_name, **row, "why": dict(why)})
    return rows


def totals(rows):
    """Ops, ops of which a sample is right, and the samples of each outcome."""
    total = collections.Counter(ops=len(rows))
    for row in rows:
        total["said"] += row.get("right", 0) > 0
        total["whole"] += row.get("right", 0) > 0 and len(set(OUTCOMES) & set(row)) == 1
        total["samples"] += sum(row.get(outcome, 0) for outcome in OUTCOMES)
        total["drawn"] += row["why"].get("right: by shape and dtype", 0)
        for outcome in OUTCOMES:
            total[outcome] += row.get(outcome, 0)
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("ops", nargs="*")
    parser.add_argument("--each", type=int, default=0, help="at most that many samples of an op")
    parser.add_argument("--dtype", help="samples of that dtype, of the ops that have it")
    parser.add_argument("--why", action="store_true", help="say what is not right, op by op")
    parser.add_argument("--json")
    args = parser.parse_args()
    rows = count(args.ops, args.each, args.dtype)
    for row in rows:
        for why, times in row["why"].items():
            if why.startswith("wrong") or (args.why and not why.startswith("right")):
                print(f"{row['name']:<40} {times:>4}  {why}")
    total = totals(rows)
    print(
        f"{total['said']} of {total['ops']} ops with a meaning here, {total['whole']} with all "
        f"their samples; {total['right']} of {total['samples']} samples right "
        f"({total['right'] / max(total['samples'], 1):.1%}, {total['drawn']} of them by shape and "
        f"dtype), {total['refused']} refused, {total['unsaid']} unsaid, {total['wrong']} wrong"
    )
    if args.json:
        with open(args.json, "w") as file:
            json.dump(rows, file, indent=1)
    return 1 if total["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
