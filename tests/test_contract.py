"""The kernels' contract through op_call: any shape, strides, offset, broadcast and dtype.

Each example lowers a row of the op table for drawn sizes and runs the list twice, one op_call a
lowered op: on tensors in C order, and on tensors in drawn layouts between guards, some of them in
place. The bits must be equal, every element written, nothing else touched, and the last result
within the row's tolerance of NumPy in float64.
"""

import json

import aicf
import numpy as np
import pytest
from aicf.serialize import read_record
from compare import BITS, numpy_dtype
from conftest import FRESH
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from op_cases import CASES, SIZES
from tensors import GUARD, Layout, Tensor
from test_ops import arg_dtype, as_list, check_case, draw, hard_values

SMALL = (0, 1, 2, 3, 5, 7)
LONG = (17, 33, 130, 300)
EXAMPLES = {"cpu": 12, "cuda": 1}  # a row; on a GPU each example compiles its kernels
SCHEMA = {name: aicf._core.lowered_schema(name) for name in aicf._core.lowered_names()}
POINTWISE_HARD = [case for case in CASES if case.pointwise and case.hard and len(case.args) <= 2]


def test_enough_examples():
    assert len(CASES) * EXAMPLES["cpu"] >= 2000


# ---- what is drawn


@st.composite
def layouts(draw, shape, constant=()):
    """Any order of the axes, gaps, negative strides, an offset; stride 0 along constant axes."""
    rank = len(shape)
    order = draw(st.permutations(range(rank)))
    steps = draw(st.lists(st.sampled_from((1, 1, 1, -1, 2, -3)), min_size=rank, max_size=rank))
    strides, unit, low = [0] * rank, 1, 0
    for axis in reversed(order):
        if axis in constant and draw(st.integers(0, 3)):
            continue
        strides[axis] = unit * steps[axis]
        unit *= abs(steps[axis]) * max(shape[axis], 1)
        low += min(strides[axis] * (max(shape[axis], 1) - 1), 0)
    before, after = draw(st.integers(0, 3)), draw(st.integers(0, 2))
    layout = Layout(shape, strides, before - low)
    layout.size += after
    return layout


def draw_shapes(case, data):
    """A shape for each operand: the row's letters in drawn sizes, or for a pointwise row any."""
    if case.pointwise:
        full = data.draw(st.lists(st.sampled_from((0, 1, 2, 3, 4, 9)), max_size=5))
        if data.draw(st.integers(0, 3)) == 0:
            full = [*full[:2], data.draw(st.sampled_from((300, 513, 1100)))]
        shapes = []
        for _ in case.args:
            shape = list(full)
            if len(case.args) > 1 and not case.op.endswith("Bwd") and data.draw(st.booleans()):
                keep = data.draw(st.lists(st.booleans(), min_size=len(full), max_size=len(full)))
                shape = [n if k else 1 for n, k in zip(full, keep, strict=True)]
                shape = shape[data.draw(st.integers(0, len(full))) :]
            shapes.append(tuple(shape))
        return shapes
    letters = sorted({letter for arg in case.args for letter in arg.dims})
    sizes = {letter: data.draw(st.sampled_from(SMALL)) for letter in letters}
    if letters and data.draw(st.integers(0, 3)) == 0:
        sizes[data.draw(st.sampled_from(letters))] = data.draw(st.sampled_from(LONG))
    for letter in letters:
        if letter in case.empty_error or case.empty_error == "all":
            sizes[letter] = max(sizes[letter], SIZES[letter])
    return [tuple(sizes[letter] for letter in arg.dims) for arg in case.args]


def build(case, dtype, shapes):
    """The row's graph, its record and its lowered list."""
    g = aicf.Graph("row")
    operands = [
        g.input(f"x{i}", shape, arg_dtype(arg, dtype))
        for i, (arg, shape) in enumerate(zip(case.args, shapes, strict=True))
    ]
    for i, y in enumerate(as_list(case.build(g, *operands))):
        g.output(f"y{i}", y)
    return json.loads(g.to_json()), read_record(g._core.lower_json())["ops"]


def draw_values(case, dtype, shapes, data):
    """Arrays by the row's ranges; hard values and axes of equal elements are mixed in."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    hard = case in POINTWISE_HARD and data.draw(st.booleans())
    arrays = []
    for arg, shape in zip(case.args, shapes, strict=True):
        letters = {f"{i}": n for i, n in enumerate(shape)}
        named = arg._replace(dims="".join(letters))
        if arg.dtype.startswith("labels:"):
            array = draw(
                arg, dtype, dict(zip(arg.dims, shape, strict=True)) | classes(case, shapes), rng
            )
        else:
            array = draw(named, dtype, letters, rng)
        if hard and arg_dtype(arg, dtype) in BITS and array.size:
            values = hard_values(arg_dtype(arg, dtype)).astype(array.dtype)
            array = np.where(rng.random(shape) < 0.4, rng.choice(values, shape), array)
        for axis in range(array.ndim):
            if array.shape[axis] > 1 and rng.random() < 0.15:
                array = np.repeat(array.take([0], axis), array.shape[axis], axis)
        arrays.append(np.asarray(array))
    return arrays


def classes(case, shapes):
    """Sizes of all letters of a row."""
    return {
        letter: size
        for arg, shape in zip(case.args, shapes, strict=True)
        for letter, size in zip(arg.dims, shape, strict=True)
    }


# ---- running a lowered list


def constants(record):
    """Arrays of the constants, by value id."""
    return {
        int(i): np.frombuffer(bytes.fromhex(value["init"]["bytes"]), numpy_dtype(value["dtype"]))
        for i, value in record["values"].items()
        if value["role"] == "constant"
    }


def operand_values(env, view):
    """The elements that a view shows."""
    store = env[view["value"]]
    if 0 in view["shape"]:
        return np.empty(view["shape"], store.dtype)
    strides = [stride * store.itemsize for stride in view["strides"]]
    start = store[view["offset"] :]
    return np.lib.stride_tricks.as_strided(start, view["shape"], strides).copy()


def constant_axes(values):
    """Axes along which all elements have the same bits."""
    bits = values.view(f"u{values.itemsize}")
    return [a for a in range(values.ndim) if values.size and (bits == bits.take([0], a)).all()]


def run_plain(ops, env, device):
    """Runs the list on tensors in C order, with a poison of its own."""
    for op in ops:
        ins = [
            Tensor(view["dtype"], Layout.c_order(view["shape"]), device, operand_values(env, view))
            for view in op["inputs"]
        ]
        outs = [Tensor(v["dtype"], Layout.c_order(v["shape"]), device, None) for v in op["outputs"]]
        for out in outs:
            out.poison(0x3C)
        aicf.op_call(op["op"], [t.give() for t in ins], [t.give() for t in outs], op["attrs"])
        for view, out in zip(op["outputs"], outs, strict=True):
            env[view["value"]] = out.read().reshape(-1)


def broadcast_axes(view):
    return [a for a, n in enumerate(view["shape"]) if n != 1 and view["strides"][a] == 0]


def narrowed(view, values, data):
    """The operand of a pointwise op without what a broadcast repeats."""
    for axis in broadcast_axes(view):
        if values.size:
            values = values.take([0], axis)
    leading = 0
    while leading < values.ndim and values.shape[leading] == 1:
        leading += 1
    return values.reshape(values.shape[data.draw(st.integers(0, leading)) :])


def run_strided(ops, env, device, data):
    """Runs the list on tensors in drawn layouts, and checks what each op touched."""
    for op in ops:
        schema = SCHEMA[op["op"]]
        ins = []
        full = any(not broadcast_axes(view) for view in op["inputs"])  # then others may be narrow
        for view in op["inputs"]:
            values = operand_values(env, view)
            if schema["pointwise"] and full and broadcast_axes(view) and data.draw(st.booleans()):
                values = narrowed(view, values, data)
            layout = data.draw(layouts(values.shape, constant_axes(values)))
            ins.append(Tensor(view["dtype"], layout, device, values))
        outs, shared = [], set()
        for o, view in enumerate(op["outputs"]):
            out = Tensor(view["dtype"], data.draw(layouts(tuple(view["shape"]))), device)
            for pair_o, i in schema["inplace"]:
                fits = ins[i].layout.shape == out.layout.shape and ins[i].item == out.item
                if pair_o == o and fits and i not in shared and data.draw(st.integers(0, 2)) == 0:
                    ins[i] = Tensor(ins[i].dtype, out.layout, device, ins[i].host())
                    out = ins[i].as_dtype(view["dtype"])
                    shared.add(i)
                    break
            outs.append(out)
        aicf.op_call(op["op"], [t.give() for t in ins], [t.give() for t in outs], op["attrs"])
        what = f"{op['op']} {op['attrs']} {[t.layout for t in ins]} -> {[t.layout for t in outs]}"
        for i, tensor in enumerate(ins):
            assert i in shared or not tensor.changed(), f"{what}: wrote input {i}"
        for view, out in zip(op["outputs"], outs, strict=True):
            assert not out.guards_changed(), f"{what}: wrote beside its output"
            env[view["value"]] = out.read().reshape(-1)


def same_bits(got, want):
    """Equal bytes; of a NaN only that it is one."""
    if np.array_equal(got.view(np.uint8), want.view(np.uint8)):
        return True
    kind = got.astype(np.float64) if got.dtype.kind not in "iub" else None
    if kind is None:
        return False
    nan = np.isnan(kind) & np.isnan(want.astype(np.float64))
    width = f"u{got.itemsize}"
    return bool(((got.view(width) == want.view(width)) | nan).all())


# A loop has a body, so nobody calls it alone; test_scan.py takes it apart.
ALONE = [case for case in CASES if case.op != "Scan"]


@pytest.mark.parametrize("case", ALONE, ids=[case.id for case in ALONE])
def test_contract(case, device):
    dtypes = [dtype for dtype in case.dtypes if numpy_dtype(dtype) is not None]

    @seed(f"{FRESH} {case.id}")
    @settings(
        max_examples=EXAMPLES[device],
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def example(data):
        dtype = data.draw(st.sampled_from(dtypes))
        shapes = draw_shapes(case, data)
        try:
            record, ops = build(case, dtype, shapes)
        except aicf.ShapeError:  # windows that do not fit
            shapes = [tuple(SIZES[letter] for letter in arg.dims) for arg in case.args]
            record, ops = build(case, dtype, shapes)
        arrays = draw_values(case, dtype, shapes, data)
        leaves = constants(record) | {i: a.reshape(-1) for i, a in enumerate(arrays)}
        plain, strided = dict(leaves), dict(leaves)
        run_plain(ops, plain, device)
        run_strided(ops, strided, device, data)
        for value, want in plain.items():
            assert same_bits(strided[value], want), f"%{value} depends on the layout: {ops}"
        got = [strided.get(output["value"]) for output in record["outputs"]]
        if len(got) == 1 and got[0] is None:
            got = [strided[ops[-1]["outputs"][0]["value"]]]
        # NumPy's own sums of many float64 are no exact reference, and integers wrap.
        known = dtype in ("float32", "float16", "bfloat16") or case.pointwise
        known = known or (
            dtype not in ("uint8", "int8", "int16") and max([0, *sum(shapes, ())]) <= max(SMALL)
        )
        known = known and (case.op != "BiasCorr" or dtype != "float64")  # NumPy's own power rounds
        if known and all(one is not None for one in got):
            shaped = [
                one.reshape(record["values"][str(output["value"])]["shape"])
                for one, output in zip(got, record["outputs"], strict=True)
            ]
            row = case._replace(zero_sign=case.zero_sign and case.pointwise)
            check_case(row, dtype, arrays, shaped, f"{dtype} {shapes}")

    example()


def test_guard_is_no_result():
    """The poison differs from what a correct result would hold, in every dtype."""
    for dtype in BITS:
        value = np.full(8, GUARD, np.uint8).view(numpy_dtype(dtype))
        assert (value.astype(float) != 0).all()
