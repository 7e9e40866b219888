"""Ops of one's own: composed and of sources."""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import aicf
import numpy as np
import pytest
from aicf import _core
from compare import assert_bits
from conftest import outputs_of, run_modes
from custom_cases import (
    COPY,
    SWISH,
    block_sums,
    compile_one,
    copied,
    define,
    gpu_graph,
    row_sums,
    swish_bias,
)
from test_cuda_fake import assert_clean, driver, run  # noqa: F401

HERE = Path(__file__).parent


def swish64(x, b, alpha):
    u = x.astype(np.float64) + b
    return u / (1 + np.exp(-alpha * u))


# ---- of sources


def test_values_and_gradients(device, rng):
    x = rng.standard_normal((37, 21)).astype(np.float32)
    b = rng.standard_normal(21).astype(np.float32)

    def build(g, x, b):
        y = swish_bias(x, b, alpha=1.5)
        dx, db = aicf.grad(aicf.sum(y), [x, b])
        ddx = aicf.grad(aicf.sum(dx), x)
        return {"y": y, "dx": dx, "db": db, "ddx": ddx}

    got = run_modes(build, {"x": x, "b": b}, device)
    u = x.astype(np.float64) + b
    s = 1 / (1 + np.exp(-1.5 * u))
    dx = s + 1.5 * u * s * (1 - s)
    ddx = 1.5 * s * (1 - s) * (2 + 1.5 * u * (1 - 2 * s))
    for name, want in {"y": swish64(x, b, 1.5), "dx": dx, "db": dx.sum(0), "ddx": ddx}.items():
        np.testing.assert_allclose(got[name], want, rtol=2e-5, atol=2e-5, err_msg=name)


def test_several_results_and_attributes(device, rng):
    x = rng.standard_normal((9, 33)).astype(np.float32)

    def build(g, x):
        total, count = row_sums(x, factor=3, scale=True)
        return {"total": total, "count": count, "dx": aicf.grad(aicf.sum(total * total), x)}

    got = run_modes(build, {"x": x}, device)
    sums = x.astype(np.float64).sum(1)
    np.testing.assert_allclose(got["total"], 3 * sums, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(got["count"], np.full(9, 33))
    want = np.broadcast_to((2 * 9 * sums)[:, None], x.shape)
    np.testing.assert_allclose(got["dx"], want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int32", "int64",
                                   "uint8", "int8", "int16", "bool"])  # fmt: skip
def test_dtypes(dtype, device):
    g = aicf.Graph("g")
    x = g.input("x", (5, 3))
    g.output("y", aicf.cast(copied(aicf.cast(x, dtype)), "float32"))
    g.output("want", aicf.cast(aicf.cast(x, dtype), "float32"))
    got = outputs_of(g.compile(device=device)(x=np.arange(15, dtype=np.float32).reshape(5, 3) / 2))
    assert_bits(got["y"], got["want"], dtype)


@pytest.mark.parametrize("view", ["permuted", "flipped", "repeated", "sliced"])
def test_strides(view, device, rng):
    """Where the sources take C order a copy is made; elsewhere they see the strides."""
    x = rng.standard_normal((6, 10)).astype(np.float32)
    of = {
        "permuted": (lambda v: aicf.permute(v, (1, 0)), lambda a: a.T),
        "flipped": (lambda v: aicf.flip(v, 1), lambda a: a[:, ::-1]),
        "repeated": (lambda v: aicf.broadcast_to(v[:, :1], (6, 10)),
                     lambda a: np.broadcast_to(a[:, :1], (6, 10))),
        "sliced": (lambda v: v[1:5, ::3], lambda a: a[1:5, ::3]),
    }  # fmt: skip
    seen, want = of[view][0], of[view][1](x)

    def build(g, x):
        return {"y": copied(seen(x)), "t": row_sums(seen(x), factor=1)[0]}

    got = run_modes(build, {"x": x}, device)
    np.testing.assert_array_equal(got["y"], want)
    np.testing.assert_allclose(got["t"], want.astype(np.float64).sum(1), rtol=1e-5, atol=1e-5)
    g = aicf.Graph("g")
    g.output("t", row_sums(seen(g.input("x", x.shape)), factor=1)[0])
    ops = [op["op"] for op in g.compile(device="cpu", passes=()).plan.ops]
    assert ops == ["custom_strided"] or view == "flipped", "no copy"


@pytest.mark.parametrize("shape", [(0, 3), (4, 0), (0, 0)])
def test_no_elements(shape, device):
    def build(g, x, b):
        return {"y": swish_bias(x, b), "t": row_sums(x, factor=1)[0]}

    x, b = np.zeros(shape, np.float32), np.zeros(shape[1], np.float32)
    got = run_modes(build, {"x": x, "b": b}, device)
    assert got["y"].shape == shape
    np.testing.assert_array_equal(got["t"], np.zeros(shape[0]))


def test_equal_bits_over_threads_passes_and_doors(rng):
    x = rng.standard_normal((257, 1031)).astype(np.float32)
    b = rng.standard_normal(1031).astype(np.float32)

    def bits(**options):
        g = aicf.Graph("g")
        v, w = g.input("x", x.shape), g.input("b", b.shape)
        y = swish_bias(v * 2.0, w)
        g.output("y", y)
        g.output("t", row_sums(y, factor=1)[0])
        return outputs_of(g.compile(device="cpu", **options)(x=x, b=b))

    want = bits(passes=())
    for threads in (1, 2, 3, 8):
        aicf.set_num_threads(threads)
        try:
            for passes in ((), "default"):
                for name, array in bits(passes=passes).items():
                    assert_bits(array, want[name], f"{threads} threads, passes {passes}, {name}")
        finally:
            aicf.set_num_threads(0)
    out = np.empty_like(x)
    aicf.op_call(swish_bias, [x * 2, b], [out])
    assert_bits(out, want["y"], "op_call")


def test_op_call_checks():
    x, out = np.ones((4, 3), np.float32), np.zeros((4, 3), np.float32)
    b = np.ones(3, np.float32)
    with pytest.raises(aicf.Unsupported, match="need C order"):
        aicf.op_call(swish_bias, [np.ones((3, 4), np.float32).T, b], [out])
    with pytest.raises(aicf.ShapeError, match=r"output ys.* is f32\[3\]; need f32\[4, 3\]"):
        aicf.op_call(swish_bias, [x, b], [b.copy()])
    with pytest.raises(aicf.GraphError, match="got 2 outputs; need 1"):
        aicf.op_call(swish_bias, [x, b], [out, out.copy()])
    total, count = np.zeros(4, np.float32), np.zeros(4, np.int64)
    aicf.op_call(row_sums, [x[:, ::-1]], [total, count], {"factor": 1})
    assert total.tolist() == [3.0] * 4 and count.tolist() == [3] * 4


def test_dump_names_the_op_and_its_order():
    g = aicf.Graph("g")
    g.output("y", row_sums(g.input("x", (3, 4)), factor=2)[0])
    assert '"op": "row_sums"' in str(g) and '"order": "ascending"' in str(g)
    step = g.compile(device="cpu")
    (op,) = step.lowered
    assert op["op"] == "custom_strided" and op["attrs"]["factor"] == 2
    assert [tuple(launch) for launch in step.trace] == [("custom_strided", "row_sums_f32")]


def test_graph_from_json(rng):
    g = aicf.Graph("g")
    x, b = g.input("x", (4, 3)), g.input("b", (3,))
    y = swish_bias(x, b, alpha=2.0)
    g.output("y", y)
    text = g.to_json()
    read = aicf.Graph.from_json(text)
    again = aicf.Value(read, y.id)
    read.output("dx", aicf.grad(aicf.sum(again), aicf.Value(read, x.id)))
    arrays = {"x": rng.standard_normal((4, 3)).astype(np.float32), "b": np.ones(3, np.float32)}
    got = outputs_of(read.compile(device="cpu")(**arrays))
    assert_bits(got["y"], g.compile(device="cpu")(**arrays)["y"].numpy(), "y")
    assert got["dx"].shape == (4, 3)
    with pytest.raises(aicf.FormatError, match=".stranger. is not defined here; need the module"):
        aicf.Graph.from_json(text.replace('"swish_bias"', '"stranger"'))
    with pytest.raises(aicf.FormatError, match="or of other sources"):
        aicf.Graph.from_json(text.replace(swish_bias.digest, "0" * 32))
    with pytest.raises(aicf.FormatError, match=r"has \{'unit_axes': 1\}; need \{'unit_axes': 2\}"):
        aicf.Graph.from_json(text.replace('"unit_axes": 2', '"unit_axes": 1'))


def test_what_the_compiler_says_has_the_lines_of_the_author():
    text = "\n// a comment\nAICF_FN void run(const Args& a, int64_t i) {\n    a.out[i] = a.z[i];\n}"
    with pytest.raises(aicf.GraphError) as caught:
        compile_one(define("wrong_member", cpu=text))
    assert "custom_op wrong_member: the compiler" in str(caught.value)
    assert "wrong_member.cpp:4:" in str(caught.value) and "‘z’" in str(caught.value)
    compile_one(define("right_again", cpu=text.replace(".z", ".x")))


def test_a_missing_compiler_and_a_missing_source(monkeypatch):
    op = define("uncompiled", cpu=COPY + " // of this test alone")
    monkeypatch.setenv("CXX", "no-such-compiler -O1")
    with pytest.raises(aicf.DeviceUnavailable, match='CXX is "no-such-compiler -O1", which cannot'):
        compile_one(op)
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(aicf.DeviceUnavailable, match=r"no c\+\+, g\+\+ or clang\+\+ on PATH"):
        compile_one(op)
    with pytest.raises(aicf.Unsupported, match="no source for the cpu; need cpu="):
        compile_one(define("only_gpu", cuda=COPY))


def test_code_is_kept_on_disk(tmp_path):
    """By source, compiler and flags: a second process compiles nothing, another source does."""
    log, compiler = tmp_path / "log", tmp_path / "compiler"
    compiler.write_text(f'#!/bin/sh\necho "$@" >> {log}\nexec c++ "$@"\n')
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    script = """
import aicf, sys
text = "AICF_FN void run(const Args& a, int64_t i) { a.out[i] = %s * a.x[i]; }" % sys.argv[1]
@aicf.custom_op(cpu=text)
def times(x):
    return x
g = aicf.Graph("g")
g.output("y", times(g.input("x", (3,))))
for _ in range(2):
    print(g.compile(device="cpu")(x=[1.0, 2.0, 3.0])["y"].numpy())
"""
    environment = {**os.environ, "CXX": str(compiler), "AICF_CACHE_DIR": str(tmp_path / "cache")}

    def out(factor):
        done = subprocess.run([sys.executable, "-c", script, factor], env=environment, text=True,
                              capture_output=True, timeout=120)  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert out("2") == "[2. 4. 6.]\n" * 2
    assert out("2") == "[2. 4. 6.]\n" * 2
    assert len(log.read_text().splitlines()) == 1
    assert out("3") == "[3. 6. 9.]\n" * 2
    lines = log.read_text().splitlines()
    assert len(lines) == 2 and all("-ffp-contract=off" in line for line in lines)


def test_threads_of_python():
    """Compiled by several threads at once, run by several at once."""
    op = define("threaded", cpu=COPY.replace("a.x[i];", "a.x[i] + 1;"))
    x = np.arange(3, dtype=np.float32)
    errors = []

    def work():
        try:
            step = compile_one(op)
            for _ in range(50):
                assert step(x=x)["y"].numpy().tolist() == [1.0, 2.0, 3.0]
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == [] and not any(thread.is_alive() for thread in threads)


def test_misuse():
    g = aicf.Graph("g")
    x, b = g.input("x", (4, 3)), g.input("b", (3,))
    half = aicf.cast(x, "float16")
    before = str(g)
    for call, kind, text in (
        (lambda: swish_bias(x), aicf.GraphError, "got 1 operands; need 2: x, b"),
        (lambda: swish_bias(x, x), aicf.ShapeError, "need b of x's last axis"),
        (lambda: swish_bias(half, b), aicf.DTypeError,
         r"x is float16; need one of \['float32'\]"),
        (lambda: swish_bias(x, 1.0), aicf.GraphError, "got 1.0; need Values"),
        (lambda: swish_bias(x, b, beta=1.0), aicf.GraphError,
         r"unknown attribute \['beta'\]; need some of \['alpha'\]"),
        (lambda: swish_bias(x, b, alpha="1"), aicf.GraphError,
         "alpha is '1'; need a finite float"),
        (lambda: swish_bias(x, b, alpha=float("inf")), aicf.GraphError, "need a finite float"),
        (lambda: row_sums(x), aicf.GraphError, "factor is missing; it has no default"),
        (lambda: row_sums(x, factor=True), aicf.GraphError, "factor is True; need a finite int"),
    ):  # fmt: skip
        with pytest.raises(kind, match=text):
            call()
    assert str(g) == before


def test_misuse_of_the_decorator():
    with pytest.raises(aicf.GraphError, match="the name is taken by another op, defined at "):
        define("copied", cpu=SWISH)
    assert define("copied", cpu=COPY, cuda=COPY).digest == copied.digest, "the same once more"
    first = define("replaced", cpu=COPY)
    second = define("replaced", cpu=COPY.replace("a.x[i]", "2 * a.x[i]"), replace=True)
    x = np.ones(3, np.float32)
    for op, want in ((first, 1.0), (second, 2.0)):  # graphs hold what they were built with
        assert compile_one(op)(x=x)["y"].numpy().tolist() == [want] * 3
    for options, text in (
        ({"cpu": COPY, "host": lambda x: x}, "need a function, or sources"),
        ({"cpu": 3}, "custom_op: cpu is 3 .*need a str"),
        ({"cuda": b"x"}, "custom_op: cuda is b'x' .*need a str"),
        ({"cpu": COPY, "gradient": 1}, "gradient is 1 .*need a function"),
        ({"gradient": 1}, "gradient is 1 .*need a function"),
        ({"cpu": COPY, "outputs": "out"}, "outputs is 'out' .*need a sequence of strs"),
        ({"cpu": COPY, "dtypes": 3}, "dtypes is 3 .*need a mapping"),
        ({"cpu": COPY, "dtypes": {"x": 3}}, "dtypes is .*need a mapping"),
        ({"cpu": COPY, "threads": 48}, "threads is 48; need 1, or a multiple of 32"),
        ({"cpu": COPY, "outputs": ["x"]}, "need distinct names"),
        ({"cpu": COPY, "outputs": []}, "need distinct names"),
        ({"cpu": COPY, "dtypes": {"y": "float32"}}, r"dtypes names \['y'\]"),
        ({"cpu": COPY, "dtypes": {"x": "complex64"}}, r"dtypes names \['complex64'\]"),
    ):
        with pytest.raises(aicf.GraphError, match=text):
            define("misused", **options)
    with pytest.raises(aicf.GraphError, match="operands by name without defaults"):
        aicf.custom_op(cpu=COPY)(lambda x, *more: x)
    with pytest.raises(aicf.GraphError, match="attribute k is k; need a default that is a bool"):

        @aicf.custom_op(cpu=COPY)
        def unknown_kind(x, *, k): ...

    g = aicf.Graph("g")
    x = g.input("x", (3,))

    @aicf.custom_op(cpu=COPY)
    def two_results(x):
        return [x, x]

    with pytest.raises(aicf.GraphError, match="gave 2 results; need 1: out"):
        two_results(x)

    @aicf.custom_op(cpu=COPY)
    def no_spec(x):
        return (3,)

    with pytest.raises(aicf.GraphError, match="need an aicf.Spec for each of the outputs"):
        no_spec(x)

    @aicf.custom_op(cpu=COPY, unit_axes=2)
    def too_many_axes(x):
        return x

    with pytest.raises(aicf.ShapeError, match="unit_axes is 2, the first output is f32.3.; need"):
        too_many_axes(x)


def test_without_a_gradient_inside_choices():
    """Which run the op, and say why there is none."""

    @aicf.custom_op(cpu=COPY)
    def copied_in_choices(x):
        return x

    def repeated(x):
        return aicf.while_loop(lambda c: aicf.sum(c) < 9.0, copied_in_choices, x, 3)

    def chosen(x):
        return aicf.cond(aicf.sum(x) > 0.0, copied_in_choices, aicf.neg, x)

    texts = "custom_op copied_in_choices .* has no gradient here", "no gradient of it is known"
    for build, text in zip((repeated, chosen), texts, strict=True):
        g = aicf.Graph("g")
        x = g.input("x", (3, 2))
        y = aicf.sum(build(x))
        with pytest.raises(aicf.GraphError, match=text):
            aicf.grad(y, x)
        g.output("y", y)
        assert g.compile(device="cpu")(x=np.full((3, 2), 2, np.float32))["y"].numpy() == 12


def test_gradients_are_checked_and_refused_by_name():
    g = aicf.Graph("g")
    x = g.input("x", (4, 3))
    for gradient, kind, text in (
        (None, aicf.GraphError, "custom_op {} has no gradient; need gradient="),
        (lambda dy, x, out: [dy, dy], aicf.GraphError,
         "custom_op {}: its backward gave 2 gradients; need 1"),
        (lambda dy, x, out: dy[0], aicf.ShapeError,
         "custom_op {}: gradient is .*f32.3. .* for .*f32.4, 3. .*; need equal shapes"),
        (lambda dy, x, out: aicf.cast(dy, "float64"), aicf.DTypeError, "need equal dtypes"),
        (lambda dy, x, out: copied(dy), None, ""),
    ):  # fmt: skip
        name = f"graded_{kind and kind.__name__}_{len(text)}"
        op = define(name, cpu=COPY, gradient=gradient)
        if kind is None:  # the gradient's own op has none
            dx = aicf.grad(aicf.sum(op(x) ** 2.0), x)
            with pytest.raises(aicf.GraphError, match="custom_op copied has no gradient"):
                aicf.grad(aicf.sum(dx), x)
            continue
        with pytest.raises(kind, match=text.format(name)):
            aicf.grad(aicf.sum(op(x)), x)
    with pytest.raises(aicf.GraphError, match="vmap: custom_op copied at .* has no rule"):
        aicf.vmap(copied)(x)


def test_in_the_body_of_a_loop(device, rng):
    """It runs there, and so does its gradient."""
    rows, b = rng.standard_normal((5, 3)).astype(np.float32), np.ones(3, np.float32)

    def turn(c, row, b):
        y = aicf.reshape(swish_bias(aicf.reshape(c + row, (1, 3)), b), (3,))
        return y, y

    g = aicf.Graph("g")
    x, v = g.input("x", rows.shape), g.input("b", b.shape)
    last, ys = aicf.scan(lambda c, row: turn(c, row, v), aicf.zeros_like(v), x)
    g.output("ys", ys)
    c = aicf.zeros_like(v)
    for k in range(5):
        c, _ = turn(c, x[k], v)
    for name, end in (("loop", last), ("unrolled", c)):
        for i, slope in enumerate(aicf.grad(aicf.sum(end), [x, v])):
            g.output(f"{name}{i}", slope)
    found = outputs_of(g.compile(device=device)(x=rows, b=b))
    c = np.zeros(3)
    for k in range(5):
        c = swish64(c + rows[k], b, 1.702)
        np.testing.assert_allclose(found["ys"][k], c, rtol=1e-5, atol=1e-6)
    for i in range(2):
        np.testing.assert_allclose(found[f"loop{i}"], found[f"unrolled{i}"], rtol=1e-5)


def test_export_of_the_cpu_is_refused(tmp_path):
    with pytest.raises(aicf.Unsupported, match="copied_f32 is of a custom_op, whose code for"):
        compile_one(copied).export(tmp_path / "step")
    assert not (tmp_path / "step").exists()


FAKE = """
import sys
import numpy as np
import aicf
import custom_cases as cases

g = cases.gpu_graph()
step = g.compile(device="cuda")
x, b = np.ones((40, 7), np.float32), np.ones(7, np.float32)
step(x=x, b=b)
step.replay(3)
step.run(x=x, b=b)
print([tuple(launch) for launch in step.trace])
step.export(sys.argv[1] if len(sys.argv) > 1 else "{file}")
try:
    cases.compile_one(cases.hosted, device="cuda", factor=2.0)
except aicf.Unsupported as error:
    print(error)
try:
    cases.compile_one(cases.define("only_cpu", cpu=cases.COPY), device="cuda")
except aicf.Unsupported as error:
    print(error)
"""
LOAD = """
import numpy as np
import aicf
step = aicf.load_step("{file}")
step(x=np.ones((40, 7), np.float32), b=np.ones(7, np.float32))
print([launch.kernel for launch in step.trace])
"""


nvrtc = pytest.mark.skipif(
    not hasattr(_core, "cuda_info") or not _core.cuda_info()["nvrtc"],
    reason="no CUDA backend in this build, or no NVRTC",
)


@nvrtc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_nvrtc_takes_the_sources(arch):
    programs = _core.cuda_programs(gpu_graph()._core, _core.pass_names(), arch=arch)
    assert len(programs) == 3
    assert all(cubin[:4] == b"\x7fELF" for cubin in _core.cuda_cubins(programs, arch))


@nvrtc
def test_on_the_fake_driver(driver, tmp_path, monkeypatch):  # noqa: F811
    """A step with sources runs, replays, and its file holds the kernels: whoever loads it has no
    definition of the ops."""
    monkeypatch.setenv("AICF_CACHE_DIR", str(driver / "cache"))
    programs = _core.cuda_programs(gpu_graph()._core, _core.pass_names(), arch="sm_90a")
    _core.cuda_cubins(programs, "sm_90a")
    file = tmp_path / "step"
    out, counts = run(driver, FAKE.replace("{file}", str(file)))
    assert_clean(counts)
    for part in ("swish_bias_f32", "row_sums_f32", "block_sums_f32",
                 "host_call hosted: it calls Python on the host",
                 "custom_op only_cpu: it has no source for a GPU; need cuda="):  # fmt: skip
        assert part in out, out
    out, counts = run(driver, LOAD.replace("{file}", str(file)))
    assert_clean(counts)
    assert "swish_bias_f32" in out and "block_sums_f32" in out


@pytest.mark.gpu
def test_block_of_threads(rng):
    x = rng.standard_normal((33, 517)).astype(np.float32)
    g = aicf.Graph("g")
    g.output("y", block_sums(g.input("x", x.shape)))
    got = g.compile(device="cuda")(x=x)["y"].numpy()
    np.testing.assert_allclose(got, x.astype(np.float64).sum(1), rtol=1e-5, atol=1e-4)


@pytest.mark.gpu
def test_cpu_and_gpu_have_equal_bits(rng):
    x = rng.standard_normal((33, 517)).astype(np.float32)
    b = rng.standard_normal(517).astype(np.float32)
    bits = []
    for device in ("cpu", "cuda"):
        g = aicf.Graph("g")
        g.output("y", swish_bias(g.input("x", x.shape), g.input("b", b.shape)))
        bits.append(g.compile(device=device)(x=x, b=b)["y"].numpy())
    assert_bits(bits[1], bits[0], "cuda and cpu")


@pytest.mark.gpu
def test_nvrtc_errors_have_the_lines_of_the_author():
    with pytest.raises(aicf.GraphError, match=r'gpu_wrong\.cu\(2\): error: .*"z"'):
        compile_one(define("gpu_wrong", cuda=COPY.replace("{", "{\n").replace(".x", ".z")), "cuda")


# ---- composed


def test_composed_ops_are_named_in_dumps():
    @aicf.custom_op
    def inner(x):
        return aicf.tanh(x)

    @aicf.custom_op
    def outer(x, *, times=2):
        """Said once."""
        return inner(x) * float(times)

    g = aicf.Graph("g")
    x = g.input("x", (3,))
    g.output("y", outer(x, times=3) + x)
    lines = [line for line in str(g).splitlines() if "# node" in line]
    assert [line.partition(" in ")[2] for line in lines] == ["outer.inner", "outer", ""]
    assert outer.__doc__ == "Said once." and outer.__name__ == "outer"
    got = g.compile(device="cpu")(x=np.ones(3, np.float32))["y"].numpy()
    np.testing.assert_allclose(got, 3 * np.tanh(1.0) + 1, rtol=1e-6)
    with pytest.raises(aicf.GraphError, match="got 1.0; need Values"):
        outer(1.0)
    with pytest.raises(aicf.GraphError, match="custom_op empty: got NoneType None"):

        @aicf.custom_op
        def empty(x):
            pass

        empty(x)


def test_composed_with_a_gradient_of_its_own():
    @aicf.custom_op(gradient=lambda dy, x, out, k: dy * x * k)
    def straight(x, *, k=2.0):
        return aicf.round(x) * k

    g = aicf.Graph("g")
    x = g.input("x", (3,))
    y = straight(x, k=3.0)
    dx = aicf.grad(aicf.sum(y * y), x)  # 2 y * 3 x
    g.output("dx", dx)
    g.output("ddx", aicf.grad(aicf.sum(dx), x))
    got = g.compile(device="cpu")(x=np.array([0.6, 1.2, 2.9], np.float32))
    x = np.array([0.6, 1.2, 2.9])
    y = 3 * np.round(x)
    np.testing.assert_allclose(got["dx"].numpy(), 6 * y * x, rtol=1e-6)
    np.testing.assert_allclose(got["ddx"].numpy(), 6 * y + 6 * x * 3 * x, rtol=1e-6)
    batch = aicf.vmap(aicf.custom_op(lambda v: aicf.tanh(v)))(g.input("batch", (4, 3)))
    assert batch.shape == (4, 3), "of a composed op it is that of its ops"
