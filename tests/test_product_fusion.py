"""Epilogue fusion of products: what follows one joins it, and keeps every bit."""

import aicf
import pytest
from aicf import verify
from test_passes import OPTIMIZERS, check_passes, draw, entries, feed_of, one, training


def test_the_reference_step_takes_few_launches(device):
    step = verify.build("step", verify.CASES["train_step_aicf_only"]).compile(device=device)
    assert len(step.trace) <= 6
    plain = verify.build("step", verify.CASES["train_step_aicf_only"]).compile(
        device=device, passes=()
    )
    assert len(plain.trace) == 19


ACTIVATIONS = ["relu", "tanh", "gelu", "silu", "sigmoid", "softplus"]


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_joins_its_product(name, device, rng):
    def build(g, x, w, b):
        return {"y": getattr(aicf, name)(aicf.linear(x, w, b))}

    feed = {"x": draw(rng, 20, 30), "w": draw(rng, 10, 30), "b": draw(rng, 10)}
    _, ops, step = one(build, feed, device)
    assert ops == ["region gemm"]
    assert [part["op"] for part in step.lowered[0]["body"]][:2] == ["gemm", "bias_add"]


def test_the_backward_of_an_activation_joins(device, rng):
    layers = (30, 20, 25, 10)
    _, step = check_passes(training(OPTIMIZERS["sgd"], layers), feed_of(rng, layers), device)
    bodies = [[part["op"] for part in op.get("body", [])] for op in entries(step)]
    assert bodies.count(["gemm", "tanh_bwd"]) == 2


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize(
    "m, n, k",
    [(1, 1, 1), (1, 70, 5), (70, 1, 5), (5, 7, 3), (100, 1, 300), (64, 8, 8), (300, 130, 70),
     (40, 700, 270), (700, 33, 20), (250, 260, 515), (0, 4, 3), (4, 3, 0)],
)  # fmt: skip
def test_sizes(m, n, k, dtype, device, rng):
    """Products of every path: single rows and columns, thin, tiled, several chunks and threads."""

    def build(g, a, b, row, column, rest):
        a, b, row, column, rest = (aicf.cast(v, dtype) for v in (a, b, row, column, rest))
        z = a @ b
        y = aicf.tanh(z * 0.125 + row)
        return {"y": y, "w": y * column - aicf.permute(rest, (1, 0)), "mask": y > 0.0}

    feed = {"a": draw(rng, m, k), "b": draw(rng, k, n), "row": draw(rng, n),
            "column": draw(rng, m, 1), "rest": draw(rng, n, m)}  # fmt: skip
    _, ops, _ = one(build, feed, device)
    assert "gemm" not in ops and ops.count("region gemm") == 1


def test_batched_products(device, rng):
    def build(g, q, k, mask):
        scores = aicf.matmul(q, aicf.permute(k, (0, 1, 3, 2))) * 0.25
        return {"y": aicf.softmax(aicf.where(mask > 0.0, scores, -1e9), axis=-1)}

    feed = {"q": draw(rng, 2, 3, 17, 8), "k": draw(rng, 2, 3, 19, 8), "mask": draw(rng, 17, 19)}
    _, ops, _ = one(build, feed, device)
    assert "region gemm" in ops and "mul" not in ops and "where" not in ops


def test_a_product_read_elsewhere_is_kept(device, rng):
    def build(g, a, b):
        z = a @ b
        return {"y": aicf.relu(z) + 1.0, "sum": aicf.sum(z, axis=0), "z": z, "turned": z.T @ z}

    _, ops, step = one(build, {"a": draw(rng, 12, 8), "b": draw(rng, 8, 12)}, device)
    assert ops.count("region gemm") == 1 and ops.count("gemm") == 1


def test_operands_that_are_the_product_s_own(device, rng):
    """A and B may be one value, and may be read again behind the product."""

    def build(g, a):
        return {
            "square": aicf.relu(a @ a),
            "again": a @ a + a,
            "residual": a + aicf.tanh(a) @ a,
            "turned": a @ a.T - a.T,
            "own": aicf.sin(a @ aicf.relu(a @ a)) * (a @ a),
        }

    one(build, {"a": draw(rng, 30, 30)}, device)


def test_results_of_another_dtype(device, rng):
    """The product needs the storage of a result of its own dtype."""

    def build(g, a, b):
        z = a @ b
        return {"mask": z > 0.5, "wide": aicf.cast(z, "float64") * 2.0, "y": aicf.exp(z) - z}

    one(build, {"a": draw(rng, 9, 8), "b": draw(rng, 8, 11)}, device)
    one(lambda g, a: {"half": aicf.cast(a @ a, "float16")}, {"a": draw(rng, 9, 9)}, device)


def test_states_behind_a_product(device, rng):
    """A state may be an operand of the product, of its epilogue, and its result."""

    def build(g):
        x = g.input("x", (6, 6))
        for i, update in enumerate(
            [
                lambda s: aicf.tanh(s @ x),
                lambda s: s * 0.5 + x @ x,
                lambda s: (x @ s) * s - s.T,
                lambda s: aicf.relu(x @ x.T) + s[:1],
            ]
        ):
            s = g.state(f"s{i}", (6, 6), init=aicf.init.uniform(-1, 1))
            g.assign(s, update(s))
            g.output(f"y{i}", s + 1.0)

    check_passes(build, {"x": draw(rng, 6, 6)}, device)
