"""Loss scaling: gradients of a scaled loss, divided again, and steps that are skipped."""

import aicf
import numpy as np
import pytest
from aicf import _core
from block_text import block_of
from compare import assert_bits

OPTIMIZERS = {
    "sgd": lambda: aicf.optim.SGD(lr=0.1),
    "momentum": lambda: aicf.optim.SGD(lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.01),
    "nesterov": lambda: aicf.optim.SGD(lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda: aicf.optim.Adam(lr=0.01),
    "adam_l2": lambda: aicf.optim.Adam(lr=0.01, weight_decay=0.1),
    "adamw": lambda: aicf.optim.AdamW(lr=0.01),
    "rmsprop": lambda: aicf.optim.RMSprop(lr=0.01, weight_decay=0.01),
    "adagrad": lambda: aicf.optim.Adagrad(lr=0.01),
}
# Of the loss in each step: two overflow, one of them twice over, and one is no number.
PLANTED = [1, 1, 1, np.inf, 1, 1, np.inf, np.inf, 1, 1, 1, 1, 1, np.nan, 1, 1, 1]
COUNTS = ("opt.scale", "opt.scale.good_steps", "opt.scale.skipped")


def mlp(g, dtype="float32"):
    x, t, k = g.input("x", (8, 6)), g.input("t", (8, 3)), g.input("k", ())
    h = aicf.tanh(g.dense("0", x, 16))
    loss = aicf.mse_loss(g.dense("1", h, 3), t)
    g.output("loss", loss)
    return loss * k


@pytest.fixture
def feed(rng):
    return {
        "x": rng.standard_normal((8, 6)).astype(np.float32),
        "t": rng.standard_normal((8, 3)).astype(np.float32),
    }


def content(step):
    return {name: np.array(array) for name, array in step.state_dict().items()}


def scaled_step(device, optimizer, scale, clip=None, passes="default", math="fp32"):
    g = aicf.Graph("scaled")
    g.minimize(mlp(g), optimizer, clip_norm=clip, loss_scale=scale)
    return g.compile(device=device, passes=passes, math=math, seed=3)


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_skipped_step_changes_nothing_but_the_scale(name, clip, feed, device):
    """And a step that is taken has the bits of one without a scale, which powers of two leave."""
    scale = aicf.optim.DynamicLossScale(initial=2.0**10, interval=3)
    plain = scaled_step(device, OPTIMIZERS[name](), None, clip)
    fixed = scaled_step(device, OPTIMIZERS[name](), 1024.0, clip)
    every = [scaled_step(device, OPTIMIZERS[name](), scale, clip, p) for p in ("default", ())]
    one = np.float32(1)
    for k in PLANTED:
        for step in every:
            before = content(step)
            step(**feed, k=np.float32(k))
            after = content(step)
            if not np.isfinite(k):
                changed = {n for n in after if after[n].tobytes() != before[n].tobytes()}
                assert changed <= set(COUNTS) and "opt.scale" in changed
        if np.isfinite(k):
            plain(**feed, k=one)
            fixed(**feed, k=one)
    want = content(plain)
    for step in (fixed, *every):
        for leaf, array in want.items():
            assert_bits(content(step)[leaf], array, leaf)
    assert int(every[0].state["opt.scale.skipped"]) == 4
    assert "opt.scale" not in fixed.state


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "adamw", "rmsprop"])
def test_the_scale_goes_as_in_pytorch(name, feed):
    """Scale and params after each step, with overflows in between."""
    torch = pytest.importorskip("torch")
    start = scaled_step("cpu", OPTIMIZERS[name](), aicf.optim.DynamicLossScale(2.0**10, interval=3))
    params = {
        n: torch.tensor(np.array(v), requires_grad=True) for n, v in sorted(start.params.items())
    }
    make = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
        "momentum": lambda p: torch.optim.SGD(
            p, lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.01
        ),
        "adam": lambda p: torch.optim.Adam(p, lr=0.01),
        "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
        "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, weight_decay=0.01),
    }[name]
    optimizer = make(list(params.values()))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
    x, t = torch.tensor(feed["x"]), torch.tensor(feed["t"])
    for k in PLANTED:
        start(**feed, k=np.float32(k))
        h = torch.tanh(torch.nn.functional.linear(x, params["0.W"], params["0.b"]))
        y = torch.nn.functional.linear(h, params["1.W"], params["1.b"])
        optimizer.zero_grad()
        scaler.scale(torch.nn.functional.mse_loss(y, t) * k).backward()
        scaler.step(optimizer)
        scaler.update()
        assert float(start.state["opt.scale"]) == scaler.get_scale()
        assert int(start.state["opt.scale.good_steps"]) == scaler._get_growth_tracker()
        for n, p in params.items():
            np.testing.assert_allclose(np.array(start.params[n]), p.detach(), rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("clip", [None, 1.0])
def test_training_in_float16(clip, device):
    """A mean over many elements has gradients that float16 holds as 0; the scale brings them back,
    after its first steps were too large."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 32)).astype(np.float32)
    t = np.tanh(x @ rng.standard_normal((32, 8)).astype(np.float32))
    ends = {}
    for name, scale in {"none": None, "dynamic": aicf.optim.DynamicLossScale(2.0**60)}.items():
        g = aicf.Graph("small gradients")
        h = aicf.tanh(g.dense("0", g.input("x", x.shape), 32))
        error = g.dense("1", h, 8) - g.input("t", t.shape)
        loss = aicf.mean(error * error)
        g.output("loss", loss)
        optimizer = aicf.optim.Adam(lr=1e-2, eps=1e-20)
        g.minimize(loss * 1e-7, optimizer, loss_scale=scale, clip_norm=clip)
        step = g.compile(device=device, math="fp16", seed=1)
        first = content(step)
        losses = [float(step(x=x, t=t)["loss"]) for _ in range(60)]
        ends[name] = losses[-1] / losses[0]
        if name == "none":
            assert_bits(content(step)["0.W"], first["0.W"], "0.W")
        else:
            assert 0 < int(step.state["opt.scale.skipped"]) < 30
            assert int(step.state["opt.step"]) == 60 - int(step.state["opt.scale.skipped"])
    assert ends["dynamic"] < 0.2 < ends["none"]


def test_a_network_with_casts_to_float16(feed, device):
    """Activations of float16, params of float32: the gradients pass through both."""
    g = aicf.Graph("casts")
    x, t = g.input("x", (8, 6)), g.input("t", (8, 3))
    w, v = g.param("w", (6, 16), init=aicf.init.normal()), g.param("v", (16, 3))
    h = aicf.tanh(aicf.matmul(aicf.cast(x, "float16"), aicf.cast(w, "float16")))
    y = aicf.cast(aicf.matmul(h, aicf.cast(v, "float16")), "float32")
    loss = aicf.mse_loss(y, t)
    g.output("loss", loss)
    scale = aicf.optim.DynamicLossScale(initial=2.0**30)
    g.minimize(loss, aicf.optim.SGD(lr=0.1), loss_scale=scale)
    step = g.compile(device=device)
    losses = [float(step(**feed)["loss"]) for _ in range(60)]
    assert 0 < int(step.state["opt.scale.skipped"]) < 30 and losses[-1] < 0.7 * losses[0]


def test_accumulated_gradients(feed, device):
    """Sums of gradients of the scaled loss, over two halves of a batch and over two steps."""
    scale = aicf.optim.DynamicLossScale(initial=2.0**8, interval=2)
    want = scaled_step(device, aicf.optim.SGD(lr=0.1), None)
    one = np.float32(1)
    want(**feed, k=one)

    add = aicf.Graph("add")
    grads = add.backward(mlp(add), grad=scale.of(add))
    for p, grad in grads.items():
        total = add.state(f"sum.{p.name}", p.shape)
        add.assign(total, total + grad * 0.5)
    adds = add.compile(device=device, seed=3)
    apply = aicf.Graph("apply")
    found = {}
    for p in grads:
        total = apply.state(f"sum.{p.name}", p.shape)
        found[apply.param(p.name, p.shape)] = total
        apply.assign(total, total * 0.0)
    apply.update(found, aicf.optim.SGD(lr=0.1), loss_scale=scale)
    applies = apply.compile(device=device, share=adds)
    for _ in range(2):
        adds(**feed, k=one)
    applies()
    assert_bits(np.array(applies.params["0.W"]), np.array(want.params["0.W"]), "0.W")
    held = content(applies)
    adds(**feed, k=np.float32(np.inf))
    applies()
    assert_bits(np.array(applies.params["0.W"]), held["0.W"], "0.W")
    assert float(adds.state["opt.scale"]) == 2.0**7 and int(applies.state["opt.scale.skipped"]) == 1


def test_schedules_averages_and_groups(feed, device):
    """A schedule counts steps that are taken, an average takes in what params hold, and a step is
    skipped for all groups at once."""
    g = aicf.Graph("all")
    loss = mlp(g)
    rate = aicf.optim.step_decay(g.step_count(), 0.1, step_size=2, gamma=0.5)
    g.output("rate", rate)
    groups = {"*.b": aicf.optim.SGD(lr=rate), "*": aicf.optim.Adam(lr=0.01)}
    scale = aicf.optim.DynamicLossScale(initial=4.0)
    g.minimize(loss, aicf.optim.AdamW(lr=rate), params="0.*", loss_scale=scale)
    g.minimize(loss, groups, params="1.*", loss_scale=scale, name="groups")
    g.ema(0.5)
    step = g.compile(device=device)
    rates = []
    for k in (np.inf, 1, np.inf, 1, 1):
        before = content(step)
        rates.append(float(step(**feed, k=np.float32(k))["rate"]))
        after = content(step)
        if not np.isfinite(k):
            for name in ("0.W", "0.b", "1.W", "1.b", "opt.step", "groups.1.step", "opt.m.0.W"):
                assert_bits(after[name], before[name], name)
    np.testing.assert_allclose(rates, [0.1, 0.1, 0.1, 0.1, 0.05], rtol=1e-6)
    assert int(after["opt.step"]) == int(after["groups.1.step"]) == 3
    assert int(after["opt.scale.skipped"]) == int(after["groups.scale.skipped"]) == 2
    assert all(np.isfinite(array).all() for name, array in after.items() if "ema" in name)


def test_many_steps_checkpoints_and_functions(feed, device, tmp_path):
    """replay, run_many, files and aicf.function have the steps one by one."""
    scale = aicf.optim.DynamicLossScale(initial=2.0**10, interval=2)
    ks = np.array([1, np.inf, 1, 1, 1, np.nan, 1, 1], np.float32)
    one = scaled_step(device, aicf.optim.Adam(), scale)
    for k in ks[:4]:
        one(**feed, k=k)
    one.save(tmp_path / "half.safetensors")
    for k in ks[4:]:
        one(**feed, k=k)
    want = content(one)
    rest = scaled_step(device, aicf.optim.Adam(), scale)
    rest.load(tmp_path / "half.safetensors")
    for k in ks[4:]:
        rest(**feed, k=k)
    many = scaled_step(device, aicf.optim.Adam(), scale)
    many.run_many(**{n: np.repeat(v[None], len(ks), 0) for n, v in feed.items()}, k=ks)
    for step in (rest, many):
        for leaf, array in want.items():
            assert_bits(content(step)[leaf], array, leaf)
    many(**feed, k=np.float32(np.inf))
    held = float(many.state["opt.scale"])
    many.replay(5)
    assert float(many.state["opt.scale"]) == held / 2**5

    net = aicf.nn.Linear(6, 3)

    @aicf.function(device=device)
    def train(x, t, k):
        loss = aicf.mse_loss(net(x), t)
        aicf.minimize(loss * k, aicf.optim.Adam(), loss_scale=scale)
        return loss

    for k in ks:
        train(**feed, k=k)
    assert float(train.state.states["opt.scale"]) == float(want["opt.scale"])
    assert int(train.state.states["opt.scale.skipped"]) == 2


def test_numbers_change_between_steps(feed, device):
    step = scaled_step(device, aicf.optim.SGD(), aicf.optim.DynamicLossScale(initial=8.0))
    step.set("opt.scale.interval", 2)
    step.set("opt.scale.growth", 4.0)
    for _ in range(2):
        step(**feed, k=np.float32(1))
    assert float(step.state["opt.scale"]) == 32.0
    step.set("opt.scale", 3e38)
    step.set("opt.scale.interval", 1)
    step(**feed, k=np.float32(0))
    assert float(step.state["opt.scale"]) == np.float32(3e38)  # it would be infinite


def test_a_scale_that_is_a_value(feed, device):
    g = aicf.Graph("value")
    loss = mlp(g)
    g.minimize(loss, aicf.optim.SGD(lr=0.1), loss_scale=g.input("scale", ()))
    step = g.compile(device=device, seed=3)
    plain = scaled_step(device, aicf.optim.SGD(lr=0.1), None)
    step(**feed, k=np.float32(1), scale=np.float32(64))
    plain(**feed, k=np.float32(1))
    assert_bits(np.array(step.params["1.W"]), np.array(plain.params["1.W"]), "1.W")


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_params_of_other_dtypes(dtype, rng, device):
    ends = []
    for scale in (None, 128.0, aicf.optim.DynamicLossScale(initial=128.0)):
        g = aicf.Graph("dtypes")
        w = g.param("w", (5, 4), dtype, init=aicf.init.normal())
        loss = aicf.cast(aicf.mean(w * w), "float32") * g.input("k", ())
        g.minimize(loss, aicf.optim.Adam(lr=0.1), clip_norm=1.0, loss_scale=scale)
        step = g.compile(device=device)
        for _ in range(3):
            step(k=np.float32(1))
        ends.append(np.array(step.params["w"]).astype(np.float64))
    np.testing.assert_allclose(ends[1], ends[0], rtol=2e-2 if dtype == "bfloat16" else 1e-12)
    np.testing.assert_allclose(ends[2], ends[0], rtol=2e-2 if dtype == "bfloat16" else 1e-12)
    step(k=np.float32(np.inf))
    assert_bits(np.array(step.params["w"]).astype(np.float64), ends[2], "w")


@pytest.mark.skipif(not hasattr(_core, "cuda_plan"), reason="no CUDA backend in this build")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_small_step_stays_one_block(name):
    g = aicf.Graph("block")
    g.minimize(mlp(g), OPTIMIZERS[name](), loss_scale=aicf.optim.DynamicLossScale())
    assert block_of(g) is not None


def test_launches(feed):
    """The largest gradients, the scale and the updates; beside a clipped norm only the scale."""
    count = {}
    for clip in (None, 1.0):
        for scale in (None, aicf.optim.DynamicLossScale()):
            step = scaled_step("cpu", aicf.optim.Adam(), scale, clip)
            count[clip, scale is not None] = len(step.trace)
    assert count[None, True] - count[None, False] <= 4
    assert count[1.0, True] - count[1.0, False] <= 2


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("name", ["sgd", "momentum", "adam"])
def test_steps_that_are_skipped_without_end_leave_a_scale_to_divide_by(name, clip, feed, device):
    step = scaled_step(device, OPTIMIZERS[name](), aicf.optim.DynamicLossScale(), clip)
    before = content(step)
    for _ in range(200):
        step(**feed, k=np.float32(np.nan))
    assert float(step.state["opt.scale"]) == np.finfo(np.float32).tiny
    assert_bits(content(step)["0.W"], before["0.W"], "0.W")
    step.set("opt.scale.interval", 1)
    for _ in range(3):
        step(**feed, k=np.float32(1))
    assert all(np.isfinite(array).all() for array in content(step).values())
    assert float(step.state["opt.scale"]) == np.finfo(np.float32).tiny * 8


def test_params_without_elements(device):
    """They have no largest gradient; where no param has one, all are finite."""
    for shapes in ({"w": (3,), "none": (0, 4)}, {"none": (0,)}):
        g = aicf.Graph("empty")
        params = [g.param(name, shape, init=aicf.init.ones()) for name, shape in shapes.items()]
        loss = sum((aicf.sum(p * p) for p in params[1:]), aicf.sum(params[0] * params[0]))
        scale = aicf.optim.DynamicLossScale(interval=1)
        g.minimize(loss, aicf.optim.SGD(lr=0.25), loss_scale=scale)
        step = g.compile(device=device)
        step()
        assert float(step.state["opt.scale"]) == 2.0**17
        np.testing.assert_array_equal(step.params["none"], np.ones(shapes["none"], np.float32))


def test_numbers_of_numpy_are_numbers():
    scale = aicf.optim.DynamicLossScale(np.float32(4), interval=np.int64(3))
    assert scale == aicf.optim.DynamicLossScale(4.0, interval=3)
    adam = aicf.optim.Adam(lr=np.float32(0.5), betas=(np.float32(0.5), np.float64(0.75)))
    assert adam == aicf.optim.Adam(lr=0.5, betas=(0.5, 0.75))
    g = aicf.Graph("numpy")
    w = g.param("w", (3,), init=aicf.init.ones())
    g.minimize(aicf.sum(w * w), aicf.optim.SGD(lr=np.float32(0.25)), loss_scale=np.float32(8))
    step = g.compile(device="cpu")
    step()
    np.testing.assert_array_equal(step.params["w"], np.full(3, 0.5, np.float32))


@pytest.mark.parametrize("number", [0.0, 1e-39, 1e-46, 3.5e38, 10**60, np.inf, np.nan])
def test_scales_that_float32_does_not_hold(number):
    """Nor the number that one is divided by."""
    g = aicf.Graph("limits")
    w = g.param("w", (3,))
    with pytest.raises(aicf.GraphError, match=r"need a number from 1.2e-38 to 3.4e38"):
        g.minimize(aicf.sum(w * w), aicf.optim.SGD(lr=0.1), loss_scale=number)
    with pytest.raises(aicf.GraphError, match=r"initial is .*need a number from 1.2e-38"):
        aicf.optim.DynamicLossScale(initial=number)
    for name in ("growth", "backoff"):
        with pytest.raises(aicf.GraphError, match=f"{name} is .*; need a number .* in float32"):
            near = 1 + 1e-9 if name == "growth" else 1 - 1e-9
            aicf.optim.DynamicLossScale(**{name: near if number < 1e-38 else number})
