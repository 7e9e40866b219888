"""An optimizer's updates as epilogues of the products and sums that make their gradients."""

import json
import re

import aicf
import numpy as np
import pytest
from aicf import _core
from compare import assert_bits

# Small graphs reach the kernels of 16 bits.
pytestmark = pytest.mark.usefixtures("any_size_narrows")

ALL = _core.pass_names()
WITHOUT = tuple(name for name in ALL if name != "update_epilogues")
OPTIMIZERS = {
    "sgd": aicf.optim.SGD(lr=0.05),
    "adam": aicf.optim.Adam(lr=1e-2),
    "adamw": aicf.optim.AdamW(lr=1e-2, weight_decay=0.1),
}


def graph_of(rows, widths, optimizer="adam", loss="labels", kept=False):
    rng = np.random.default_rng(rows)
    g = aicf.Graph("net")
    h = g.input("x", (rows, widths[0]))
    for i, width in enumerate(widths[1:]):
        h = g.dense(str(i), aicf.relu(h) if i else h, width)
    feed = {"x": rng.standard_normal((rows, widths[0]), dtype=np.float32)}
    if loss == "labels":
        feed["t"] = rng.integers(0, widths[-1], rows)
        value = aicf.cross_entropy(h, g.input("t", (rows,), "int64"))
    else:
        feed["t"] = rng.standard_normal((rows, widths[-1]), dtype=np.float32)
        value = aicf.mse_loss(h, g.input("t", h.shape))
    if kept:
        g.output("grad", g.backward(value, [g.params["0.W"]])[g.params["0.W"]])
    g.minimize(value, OPTIMIZERS[optimizer])
    g.output("loss", value)
    return g, feed


def plan_of(g, math="fp32", passes=ALL, arch="sm_90a"):
    return json.loads(_core.cuda_plan(g._core, passes, 132, arch, math=math))["ops"]


def with_updates(ops):
    """What makes the gradients behind which updates stand."""
    every = [one for op in ops for one in (op.get("members") or [op])]
    bodies = [[step["op"] for step in one.get("body") or ()] for one in every]
    updates = ("adam_step", "sgd_step")
    return sorted(b[0] for b in bodies if b and b[-1].endswith(updates) and b[0] in ANCHORS)


ANCHORS = ("gemm", "reduce_sum")
NETS = [
    (128, (64, 64, 64, 10)),
    (128, (256, 256, 256, 10)),
    (16, (1024, 1024, 1024, 10)),
    (128, (784, 512, 512, 10)),
    (16, (128, 128, 128, 128, 10)),
]


@pytest.mark.parametrize("math", ["fp32", "tf32"])
@pytest.mark.parametrize(("rows", "widths"), NETS)
def test_launches_of_a_net(rows, widths, math):
    """Each layer forward, the last with the loss and its gradients; each but two back; updates."""
    layers = len(widths) - 1
    ops = plan_of(graph_of(rows, widths)[0], math)
    assert len(ops) == 2 * layers - 1
    assert with_updates(ops) == ["gemm"] * layers + ["reduce_sum"] * layers
    assert {op["lane"] for op in ops} == {0}
    apart = plan_of(graph_of(rows, widths)[0], math, WITHOUT)
    assert with_updates(apart) == [] and len(apart) > len(ops)


@pytest.mark.parametrize(("rows", "widths"), NETS)
def test_launches_of_a_net_in_16_bits(rows, widths):
    """One more, of all casts; the cast of a gradient stands between its product and the update."""
    layers = len(widths) - 1
    ops = plan_of(graph_of(rows, widths)[0], "mixed")
    assert len(ops) == 2 * layers
    assert with_updates(ops) == ["gemm"] * layers + ["reduce_sum"] * layers
    assert {op["lane"] for op in ops} == {0}
    assert {m["op"] for m in ops[0]["members"]} <= {"cast", "region"}
    bodies = [m["body"] for m in ops[-1]["members"] if m.get("body")]
    assert all([s["op"] for s in b][-2:] == ["cast", "adam_step"] for b in bodies)


def test_tf32_has_the_launches_of_fp32():
    """Where its products are too few to gain, their kernels too; tiles have pieces of k alike."""

    def kernels(rows, width, math):
        return [op["kernel"] for op in plan_of(graph_of(rows, (width,) * 3 + (10,))[0], math)]

    for rows, width in ((16, 256), (128, 128)):
        assert kernels(rows, width, "tf32") == kernels(rows, width, "fp32")
    assert kernels(128, 256, "tf32")[0].endswith("_tf32_near_16x16_boxes_2")
    assert kernels(128, 256, "fp32")[0].endswith("_near_8x16_2")


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer(optimizer):
    g, _ = graph_of(128, (64, 96, 10), optimizer)
    assert with_updates(plan_of(g)) == ["gemm"] * 2 + ["reduce_sum"] * 2
    assert with_updates(plan_of(g, arch="sm_80")) == ["gemm"] * 2 + ["reduce_sum"] * 2


def test_what_has_launches_of_its_own():
    """Updates by gradients that leave the step; of many elements, or after long products whose
    kernel takes none; where a product in 32 bits has warps with roles."""
    for sizes, math, options in [
        ((128, (64, 96, 10)), "fp32", {"kept": True}),
        ((16, (2048, 2048, 10)), "fp32", {}),
        ((1024, (512, 512, 512, 10)), "fp32", {}),
        ((4096, (256, 256, 256, 10)), "tf32", {}),
        ((1024, (512, 512, 512, 10)), "mixed", {}),
        ((1024, (320, 320, 320, 10)), "fp32", {}),
        ((512, (512, 512, 512, 10)), "tf32", {}),
    ]:
        assert with_updates(plan_of(graph_of(*sizes, **options)[0], math)) == []
    for sizes, math in [
        ((16, (2030, 2030, 10)), "fp32"),  # below 4 Mi elements
        ((1016, (256, 256, 256, 10)), "fp32"),  # below 1,024 terms, or below so many results
        ((1024, (240, 256, 10)), "fp32"),
        ((504, (512, 512, 512, 10)), "tf32"),
        ((1024, (256, 256, 256, 10)), "tf32"),
    ]:
        assert with_updates(plan_of(graph_of(*sizes)[0], math)) != []


@pytest.mark.parametrize(
    ("rows", "widths", "behind"),
    [
        (1024, (256, 256, 256, 10), 1),
        (1024, (128, 128, 128, 10), 1),
        (1016, (128, 128, 128, 10), 3),  # below 1,024 terms, or below so many results
        (1024, (128, 120, 120, 10), 3),
        (1024, (64, 256, 64, 64, 10), 1),
    ],
)
def test_of_long_products_the_last_takes_its_update(rows, widths, behind):
    """The others are made beside products back; their updates share the last launch."""
    ops = plan_of(graph_of(rows, widths)[0])
    assert with_updates(ops) == ["gemm"] * behind + ["reduce_sum"] * behind
    every = [one for op in ops for one in (op.get("members") or [op])]
    steps = [step["op"] for one in every for step in one.get("body") or ()]
    assert steps.count("adam_step") == 2 * (len(widths) - 1)
    updates = [i for i, op in enumerate(ops) if "adam_step" in op["kernel"] or with_updates([op])]
    assert updates == [len(ops) - 1]


@pytest.mark.parametrize(("rows", "behind"), [(1016, True), (1024, True), (1032, False)])
def test_sums_of_16_bits_have_at_most_1024_terms(rows, behind):
    g, _ = graph_of(rows, (64, 96, 10))
    assert bool(with_updates(plan_of(g, "mixed"))) == behind
    assert with_updates(plan_of(g, "tf32")) != []


def test_deep_nets_take_several_launches_of_updates():
    """An argument block has room for 14 of them; of more than 32 none is an epilogue."""
    for layers, more in ((6, 0), (8, 1), (16, 2), (17, None)):
        ops = plan_of(graph_of(128, (64,) * layers + (10,))[0])
        if more is None:
            assert with_updates(ops) == []
        else:
            assert len(ops) == 2 * layers - 1 + more and len(with_updates(ops)) == 2 * layers


def test_scalars_of_updates_and_a_loss_join_a_product():
    """In the launch of the product back, or of the first forward where there is no other."""

    def members(widths):
        ops = plan_of(graph_of(128, widths, loss="mse")[0])
        groups = [[m.get("anchor", m["op"]) for m in op.get("members", ())] for op in ops]
        return [group for group in groups if "step_inc" in group]

    for widths in ((64, 64, 64, 64), (64, 64)):
        ((product, scalars),) = members(widths)
        assert (product, scalars) == ("gemm", "step_inc")


def compiled_text(g, math, arch="sm_90a"):
    programs = _core.cuda_programs(g._core, ALL, arch=arch, math=math)
    return [text for text in programs if "updates = true" in text]


BITS = [
    (64, (40, 33, 10)),  # rows that begin anywhere
    (100, (130, 64, 10)),
    (16, (128, 260, 10)),
    (300, (64, 129, 36, 10)),  # two chunks of terms, side by side in a block
    (1000, (70, 66, 10)),  # parts of a sum in several blocks
    (160, (257, 130, 128, 10)),
    (129, (512, 384, 10)),
    (8, (1030, 516, 10)),
    (1024, (128, 128, 10)),  # of a long product the last one's alone
]


@pytest.mark.parametrize("math", ["fp32", "tf32", "mixed"])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_kernels_compile_without_spills(math, arch):
    for rows, widths in [*BITS, *NETS]:
        g, _ = graph_of(rows, widths)
        texts = compiled_text(g, math, arch)
        assert texts, (rows, widths)
        for text in texts:
            log = _core.cuda_log(text, arch)
            spilled = [int(n) for n in re.findall(r"(\d+) bytes spill stores", log)]
            assert max(spilled) <= 16 and "error" not in log, (rows, widths, spilled)


def bits(step, feed):
    for _ in range(3):
        loss = step(**feed)["loss"].numpy()
    return {"loss": loss, **{name: step.state[name].numpy() for name in step.state}}


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("math", ["fp32", "tf32", "mixed"])
@pytest.mark.parametrize(("rows", "widths"), [*BITS, (128, (256, 256, 256, 10))])
def test_bits_are_those_of_launches_apart(rows, widths, math, optimizer):
    g, feed = graph_of(rows, widths, optimizer)
    tensor_cores = {"tensor_cores": "sm_90"} if math != "fp32" else {}
    want = bits(g.compile(device="cpu", seed=1, math=math, **tensor_cores), feed)
    for passes in (ALL, WITHOUT):
        got = bits(g.compile(device="cuda", seed=1, math=math, passes=passes), feed)
        for name, value in want.items():
            assert_bits(got[name], value, f"{name} of {passes}")


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "widths", "math"),
    [
        (1016, (256, 256, 256, 10), "fp32"),
        (1024, (256, 256, 256, 10), "fp32"),
        (1024, (240, 256, 10), "fp32"),
        (16, (2030, 2030, 10), "fp32"),
        (504, (512, 512, 512, 10), "tf32"),
        (512, (512, 512, 512, 10), "tf32"),
        (1024, (64, 96, 10), "mixed"),
        (1032, (64, 96, 10), "mixed"),
        (16, (1024, 1024, 1024, 10), "tf32"),
        (128, (64,) * 8 + (10,), "fp32"),  # several launches of updates
        (128, (64,) * 16 + (10,), "mixed"),
    ],
)
def test_bits_at_the_sizes_that_decide(rows, widths, math):
    """Whether updates stand behind what makes their gradients, and in how many launches."""
    g, feed = graph_of(rows, widths)
    want, got = (
        bits(g.compile(device="cuda", seed=1, math=math, passes=passes), feed)
        for passes in ((), ALL)
    )
    for name, value in want.items():
        assert_bits(got[name], value, name)


@pytest.mark.gpu
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("math", ["fp32", "tf32", "mixed"])
def test_bits_of_every_kernel_of_a_gradient(math, part):
    """In parts, since each kernel is compiled."""
    g, feed = graph_of(300, (132, 72, 10))
    want = None
    known = _core.cuda_candidates(g._core, ALL, math=math)
    found = {key: names for key, names in known.items() if "adam_step" in key}
    assert found
    for key, names in found.items():
        for name in [names[0], *names[1 + part :: 4]]:
            step = g.compile(device="cuda", seed=1, math=math, candidates={key: name})
            got = bits(step, feed)
            want = got if want is None else want
            for what, value in want.items():
                assert_bits(got[what], value, f"{what} by {name}")


@pytest.mark.gpu
def test_double_precision_and_a_file(tmp_path):
    """Sixteen bytes are two elements there; a file holds what was fused."""
    g = aicf.Graph("double")
    x, t = g.input("x", (33, 40), "float64"), g.input("t", (33, 6), "float64")
    w, b = (g.param(n, s, dtype="float64") for n, s in (("w", (36, 40)), ("b", (36,))))
    v = g.param("v", (6, 36), dtype="float64")
    loss = aicf.mse_loss(aicf.linear(aicf.tanh(aicf.linear(x, w, b)), v), t)
    g.minimize(loss, aicf.optim.Adam(lr=1e-2))
    g.output("loss", loss)
    rng = np.random.default_rng(5)
    feed = {"x": rng.standard_normal((33, 40)), "t": rng.standard_normal((33, 6))}
    step = g.compile(device="cuda", seed=1)
    step.export(tmp_path / "double.aicf")
    want = bits(g.compile(device="cpu", seed=1), feed)
    for one in (step, aicf.load_step(tmp_path / "double.aicf")):
        got = bits(one, feed)
        for name, value in want.items():
            assert_bits(got[name], value, name)


@pytest.mark.gpu
def test_many_steps_in_one_launch_of_a_graph():
    """Each step reads what the one before wrote, without a launch between."""
    g, feed = graph_of(128, (64, 96, 10))
    one, many = (g.compile(device="cuda", seed=1) for _ in range(2))
    for _ in range(40):
        one(**feed)
    many(**feed)
    many.replay(39)
    for name in one.state:
        assert_bits(many.state[name].numpy(), one.state[name].numpy(), name)


def wide_layer(width):
    g = aicf.Graph("layer")
    y = g.dense("0", g.input("x", (128, 512)), width)
    g.minimize(aicf.mse_loss(y, g.input("t", (128, width))), aicf.optim.Adam(lr=1e-3))
    return g


WIDTHS = [(504, "near_32x32"), (512, "near_64x64"), (520, "near_64x64")]  # 2^18 results


@pytest.mark.parametrize(("width", "tile"), WIDTHS)
def test_many_results_of_16_bits_have_large_tiles(width, tile):
    g = wide_layer(width)
    plan = json.loads(_core.cuda_plan(g._core, _core.pass_names(), 132, "sm_90a", math="mixed"))
    assert tile in plan["ops"][-1]["kernel"]


@pytest.mark.gpu
@pytest.mark.hopper
@pytest.mark.parametrize("width", [width for width, _ in WIDTHS])
def test_updates_behind_large_tiles_have_the_bits_of_a_cpu(width, make_rng):
    rng, g = make_rng(5), wide_layer(width)
    feed = {k: rng.standard_normal((128, n)).astype("f") for k, n in (("x", 512), ("t", width))}
    steps = [
        g.compile(math="mixed", seed=1, **how)
        for how in ({"device": "cuda"}, {"device": "cpu", "tensor_cores": "sm_90"})
    ]
    for step in steps:
        for _ in range(2):
            step(**feed)
    for kind in ("params", "state"):
        for name in getattr(steps[0], kind):
            assert_bits(*(getattr(step, kind)[name].numpy() for step in steps), name)
