"""How many of ONNX's node cases aicf computes.

    python tests/onnx_cases.py [op ...] [--why] [--each N] [--json FILE]

Needs onnx. Each case of its backend tests but the expanded ones becomes a graph by `onnx_ops`;
results are compared in shape, dtype and values, within the case's tolerances. A case is `right`,
`refused` with an aicf.Error, `unsaid` where no function stands for an op, or `wrong`.
"""

import argparse
import collections
import json
import sys
import warnings

import aicf
import numpy as np
from onnx_ops import OPS, Node

OUTCOMES = ("right", "refused", "unsaid", "wrong")
ROUNDED = {"float16": 2.0**-9, "bfloat16": 2.0**-6}


def cases():
    import onnx  # noqa: F401
    from onnx.backend.test.case.node import collect_testcases

    warnings.filterwarnings("ignore")
    state = np.random.get_state()
    try:
        return [case for case in collect_testcases(None) if "_expanded" not in case.name]
    finally:
        np.random.set_state(state)


def op_of(case):
    return case.model.graph.node[0].op_type


def built(model, inputs):
    """A graph of the model, with its inputs' and outputs' names."""
    import onnx

    g, given, values = aicf.Graph("case"), {}, {}
    for info, array in zip(model.graph.input, inputs, strict=True):
        value = g.input(info.name, array.shape, array.dtype.name)
        values[info.name], given[value.id] = value, array
    for proto in model.graph.initializer:
        array = onnx.numpy_helper.to_array(proto)
        value = values[proto.name] = g.constant(array)
        given[value.id] = array
    for proto in model.graph.node:
        op = OPS.get(proto.op_type)
        if op is None:
            raise NotImplementedError(proto.op_type)
        results = op(
            Node(onnx, proto, g, given), *(values[name] if name else None for name in proto.input)
        )
        results = results if isinstance(results, tuple) else (results,)
        for name, value in zip(proto.output, results, strict=False):
            values[name] = value
    for info in model.graph.output:
        g.output(info.name, values[info.name])
    return g


def array_of(x):
    """An array of numbers, or why it is none."""
    import onnx

    x = onnx.numpy_helper.to_array(x) if isinstance(x, onnx.TensorProto) else x
    if not isinstance(x, (np.ndarray, np.generic)):
        return None, "sequences and options"
    x = np.asarray(x)
    return (None, "strings") if x.dtype.kind in "OUST" else (x, "")


def run(case):
    """One of OUTCOMES, and why."""
    if op_of(case) not in OPS:
        return "unsaid", "no function of that meaning"
    for data in case.data_sets:
        taken = [[array_of(x) for x in part] for part in data]
        why = [reason for part in taken for x, reason in part if x is None]
        if why:
            return "unsaid", why[0]
        inputs, wanted = ([x for x, _ in part] for part in taken)
        names = [info.name for info in case.model.graph.input]
        try:
            step = built(case.model, inputs).compile(device="cpu", checks="off")
            out = step(**dict(zip(names, inputs, strict=True)))
        except aicf.Error as error:
            return "refused", f"{type(error).__name__}: {error}"
        except (TypeError, ValueError, AttributeError, IndexError, KeyError) as error:
            return "unsaid", f"{type(error).__name__}: {error}"
        for info, want in zip(case.model.graph.output, wanted, strict=True):
            have = out[info.name]
            if have.dtype != want.dtype.name:
                return "wrong", f"dtype {have.dtype}, and ONNX's is {want.dtype}"
            if have.shape != want.shape:
                return "wrong", f"shape {have.shape}, and ONNX's is {want.shape}"
            close = np.isclose(
                have.numpy().astype(np.float64),
                want.astype(np.float64),
                # ONNX rounds after each step of its own, whatever the order.
                rtol=max(case.rtol, ROUNDED.get(have.dtype, 0)),
                atol=max(case.atol, ROUNDED.get(have.dtype, 0)),
                equal_nan=True,
            )
            if not np.all(close):
                return "wrong", f"{np.count_nonzero(~close)} of {close.size} elements differ"
    return "right", ""


def count(only=(), each=0):
    """Rows {op, right, refused, unsaid, wrong, why}."""
    rows = {}
    for case in cases():
        name = op_of(case)
        row = rows.setdefault(name, {"op": name, "why": collections.Counter()})
        done = sum(row.get(outcome, 0) for outcome in OUTCOMES)
        if (only and name not in only) or (each and done >= each):
            continue
        outcome, reason = run(case)
        row[outcome] = row.get(outcome, 0) + 1
        if reason:
            row["why"][f"{outcome}: {reason.splitlines()[0][:120]}"] += 1
            if outcome == "wrong":
                row.setdefault("names", []).append(case.name)
    return [row for row in rows.values() if len(row) > 2]


def totals(rows):
    total = collections.Counter()
    for row in rows:
        for outcome in OUTCOMES:
            total[outcome] += row.get(outcome, 0)
        total["ops"] += row.get("right", 0) > 0
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("ops", nargs="*")
    parser.add_argument("--each", type=int, default=0, help="at most that many cases of an op")
    parser.add_argument("--why", action="store_true", help="say what is not right, op by op")
    parser.add_argument("--json")
    args = parser.parse_args()
    rows = count(args.ops, args.each)
    for row in rows:
        for why, times in row["why"].items():
            if args.why or why.startswith("wrong"):
                print(f"{row['op']:<28} {times:>4}  {why}", *row.get("names", [])[:6])
    total = totals(rows)
    cases_ = sum(total[outcome] for outcome in OUTCOMES)
    print(
        f"{total['right']} of {cases_} cases right ({total['right'] / max(cases_, 1):.1%}), of "
        f"{total['ops']} of {len(rows)} ops; {total['refused']} refused, {total['unsaid']} unsaid, "
        f"{total['wrong']} wrong"
    )
    if args.json:
        with open(args.json, "w") as file:
            json.dump(rows, file, indent=1)
    return 1 if total["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
