"""ctc_loss against PyTorch in float64: values, gradients, options, lengths."""

import aicf
import numpy as np
import pytest
from aicf import _core
from compare import assert_bits
from conftest import outputs_of, run_modes


def drawn(rng, times, count, classes, size, blank):
    labels = rng.integers(0, classes - 1, (count, size))
    return rng.standard_normal((times, count, classes)), labels + (labels >= blank)


def by_torch(logits, labels, inputs, lengths, **options):
    torch = pytest.importorskip("torch")
    x = torch.tensor(logits, dtype=torch.float64, requires_grad=True)
    loss = torch.nn.functional.ctc_loss(
        torch.log_softmax(x, -1), torch.tensor(labels), torch.tensor(inputs), torch.tensor(lengths),
        **options,
    )  # fmt: skip
    loss.sum().backward()
    return loss.detach().numpy(), x.grad.numpy()


def by_aicf(logits, labels, inputs, lengths, dtype="float64", device="cpu", **options):
    def build(g, x, labels):
        loss = aicf.ctc_loss(aicf.log_softmax(x, -1), labels, inputs, lengths, **options)
        return {"loss": loss, "dx": aicf.grad(aicf.sum(loss), x)}

    x = logits.astype("float32" if dtype == "float16" else dtype)
    got = run_modes(build, {"x": x, "labels": labels}, device)
    return got["loss"], got["dx"]


CASES = {  # times, batch, classes, labels; input lengths; target lengths; options
    "mean": ((7, 3, 5, 3), [7, 6, 5], [3, 2, 1], {}),
    "sum": ((7, 3, 5, 3), [7, 7, 7], [3, 3, 3], {"reduction": "sum"}),
    "none": ((7, 3, 5, 3), [7, 6, 4], [3, 2, 1], {"reduction": "none"}),
    "no_labels": ((6, 2, 4, 2), [6, 3], [0, 2], {"reduction": "none"}),
    "blank": ((8, 2, 6, 3), [8, 7], [2, 3], {"blank": 3}),
    "long": ((60, 2, 30, 20), [60, 55], [20, 12], {"reduction": "none"}),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name, device, rng):
    sizes, inputs, lengths, options = CASES[name]
    logits, labels = drawn(rng, *sizes, options.get("blank", 0))
    wanted = by_torch(logits, labels, inputs, lengths, **options)
    for dtype, bound in (("float64", 1e-11), ("float32", 3e-5)):
        got = by_aicf(logits, labels, inputs, lengths, dtype, device, **options)
        for array, want in zip(got, wanted, strict=True):
            np.testing.assert_allclose(array, want, rtol=bound, atol=bound, err_msg=dtype)


def test_targets_in_a_row_lengths_as_values_and_one_member(rng):
    logits, labels = drawn(rng, 9, 3, 5, 4, 0)
    inputs, lengths = [9, 8, 7], [4, 0, 2]
    want = by_aicf(logits, labels, inputs, lengths)
    row = np.concatenate([labels[i, :size] for i, size in enumerate(lengths)])
    for array, same in zip(by_aicf(logits, row, inputs, lengths), want, strict=True):
        assert_bits(array, same, "targets in a row")
    g = aicf.Graph("g")
    x, t = g.input("x", logits.shape, "float64"), g.input("t", labels.shape, "int32")
    i, n = g.input("i", (3,), "int32"), g.input("n", (3,), "int64")
    g.output("loss", aicf.ctc_loss(aicf.log_softmax(x, -1), t, i, n))
    got = g.compile(device="cpu")(
        x=logits, t=labels.astype(np.int32), i=np.array(inputs, np.int32), n=np.array(lengths)
    )
    assert_bits(got["loss"].numpy(), want[0], "lengths as values")
    one = by_aicf(logits[:, 0], labels[0], 9, 4, reduction="none")
    each = by_aicf(logits, labels, inputs, lengths, reduction="none")
    assert one[0].shape == ()
    assert_bits(one[0], each[0][0], "one member")
    assert_bits(one[1], each[1][:, 0], "one member's gradient")


def test_an_input_that_is_too_short(rng):
    """Equal labels need a blank between them: four of them seven times."""
    logits = rng.standard_normal((9, 3, 4))
    labels, inputs, lengths = np.ones((3, 4), np.int64), [9, 6, 0], [4, 4, 0]
    loss, dx = by_aicf(logits, labels, inputs, lengths, reduction="none")
    assert np.isfinite(loss[0]) and loss[1] == np.inf and loss[2] == 0
    assert np.isfinite(dx).all() and not dx[:, 1:].any()
    loss, dx = by_aicf(logits, labels, inputs, lengths, zero_infinity=True)
    wanted = by_torch(logits, labels, [9, 6, 1], [4, 4, 4], zero_infinity=True)
    np.testing.assert_allclose(loss, wanted[0], rtol=1e-12)
    np.testing.assert_allclose(dx, wanted[1], rtol=1e-10, atol=1e-12)


def test_launches_do_not_grow_with_time():
    counts = []
    for times in (5, 500):
        g = aicf.Graph("g")
        x, t = g.input("x", (times, 2, 6)), g.input("t", (2, 3), "int64")
        loss = aicf.ctc_loss(aicf.log_softmax(x, -1), t, [times] * 2, [3, 3])
        g.output("dx", aicf.grad(loss, x))
        counts.append(len(g.compile(device="cpu").trace))
    assert counts[0] == counts[1] < 25


def test_equal_bits_over_threads_and_passes(rng):
    logits, labels = drawn(rng, 33, 9, 17, 11, 0)
    bits = []
    for threads in (1, 3):
        aicf.set_num_threads(threads)
        try:
            for passes in ((), "default"):
                g = aicf.Graph("g")
                x, t = g.input("x", logits.shape), g.input("t", labels.shape, "int64")
                loss = aicf.ctc_loss(aicf.log_softmax(x, -1), t, [33] * 9, [11] * 9)
                g.output("loss", loss)
                g.output("dx", aicf.grad(loss, x))
                step = g.compile(device="cpu", passes=passes)
                bits.append(outputs_of(step(x=logits.astype(np.float32), t=labels)))
        finally:
            aicf.set_num_threads(0)
    for one in bits[1:]:
        for name, array in one.items():
            assert_bits(array, bits[0][name], name)


def test_vmap_is_a_batch(rng):
    logits, labels = drawn(rng, 7, 4, 5, 3, 0)
    g = aicf.Graph("g")
    x, t = g.input("x", logits.shape, "float64"), g.input("t", labels.shape, "int64")

    def one(row, target):
        loss = aicf.ctc_loss(aicf.log_softmax(row, -1), target, 7, 3, reduction="none")
        return [loss, aicf.grad(loss, row)]

    loss, dx = aicf.vmap(one, in_axes=(1, 0))(x, t)
    g.output("loss", loss)
    g.output("dx", dx)
    got = outputs_of(g.compile(device="cpu")(x=logits, t=labels))
    want = by_aicf(logits, labels, [7] * 4, [3] * 4, reduction="none")
    np.testing.assert_allclose(got["loss"], want[0], rtol=1e-12)
    np.testing.assert_allclose(got["dx"], want[1].transpose(1, 0, 2), rtol=1e-9, atol=1e-12)


def test_misuse():
    g = aicf.Graph("g")
    x, t = g.input("x", (7, 2, 5)), g.input("t", (2, 3), "int64")
    before = g._core.mark()
    for given, kind, text in (
        ({"blank": 5}, aicf.GraphError, "blank is 5; need one of 5 classes"),
        ({"reduction": "all"}, aicf.GraphError, "reduction is 'all'"),
        ({"input_lengths": [7, 8]}, aicf.ShapeError, r"\[7, 8\]; need 2 numbers from 0 to 7"),
        ({"target_lengths": [3]}, aicf.ShapeError, "need 2 numbers from 0 to 3"),
        ({"target_lengths": ["3", 1]}, aicf.GraphError, "need whole numbers, or a Value"),
        ({"target_lengths": x}, aicf.DTypeError, "need int32 or int64"),
        ({"input_lengths": t}, aicf.ShapeError, r"need shape \(2,\)"),
        ({"targets": x}, aicf.DTypeError, "targets is .* need int32 or int64"),
        ({"targets": g.input("row", (5,), "int64")}, aicf.ShapeError, r"need \[2, S\], or all"),
        ({"log_probs": g.input("four", (2, 2, 2, 2))}, aicf.ShapeError, r"need \[T, N, C\]"),
        ({"log_probs": g.input("none", (0, 2, 5))}, aicf.ShapeError, "without an empty axis"),
    ):
        call = {"log_probs": x, "targets": t, "input_lengths": [7, 7], "target_lengths": [3, 3]}
        with pytest.raises(kind, match=text):
            aicf.ctc_loss(**call | given)
    assert g._core.mark().nodes == before.nodes
    with pytest.raises(aicf.GraphError, match="no second derivative of ctc_loss"):
        dx = aicf.grad(aicf.ctc_loss(aicf.log_softmax(x, -1), t, [7, 7], [3, 3]), x)
        aicf.grad(aicf.sum(dx * dx), x)


@pytest.mark.skipif(
    not hasattr(_core, "cuda_info") or not _core.cuda_info()["nvrtc"],
    reason="no CUDA backend in this build, or no NVRTC",
)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_nvrtc_takes_the_kernels(arch):
    """Of a block whose threads take several states each, and of both dtypes."""
    g = aicf.Graph("g")
    for dtype in ("float32", "float64"):
        x, t = g.input(f"x.{dtype}", (9, 2, 5), dtype), g.input(f"t.{dtype}", (2, 200), "int64")
        loss = aicf.ctc_loss(aicf.log_softmax(x, -1), t, [9, 9], [4, 3])
        g.output(dtype, aicf.grad(loss, x))
    programs = _core.cuda_programs(g._core, _core.pass_names(), arch=arch)
    kernels = [program for program in programs if "ctc_paths" in program]
    assert any("ctc_paths_bwd" in program for program in kernels)
    assert all(cubin[:4] == b"\x7fELF" for cubin in _core.cuda_cubins(kernels, arch))
