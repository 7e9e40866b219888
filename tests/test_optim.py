"""Optimizers against NumPy and PyTorch, changed between replays, with schedules and clipping."""

import math

import aicf
import numpy as np
import pytest
from aicf import optim
from compare import assert_bits
from conftest import outputs_of

STEPS = 20

# name -> (aicf's description, PyTorch's class, its arguments)
CASES = {
    "sgd": (optim.SGD(0.05), "SGD", {"lr": 0.05}),
    "sgd_momentum": (optim.SGD(0.05, 0.9), "SGD", {"lr": 0.05, "momentum": 0.9}),
    "sgd_nesterov": (
        optim.SGD(0.05, 0.9, nesterov=True, weight_decay=0.1),
        "SGD",
        {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    ),
    "sgd_dampening": (
        optim.SGD(0.05, 0.8, dampening=0.3, weight_decay=0.1),
        "SGD",
        {"lr": 0.05, "momentum": 0.8, "dampening": 0.3, "weight_decay": 0.1},
    ),
    "adam": (optim.Adam(0.02), "Adam", {"lr": 0.02}),
    "adam_decay": (
        optim.Adam(0.02, (0.8, 0.95), 1e-6, 0.1),
        "Adam",
        {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1},
    ),
    "adamw": (optim.AdamW(0.02), "AdamW", {"lr": 0.02}),
    "adamw_decay": (
        optim.AdamW(0.02, (0.8, 0.95), 1e-6, 0.2),
        "AdamW",
        {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.2},
    ),
    "rmsprop": (optim.RMSprop(), "RMSprop", {}),
    "rmsprop_decay": (
        optim.RMSprop(0.02, 0.9, 1e-6, 0.1),
        "RMSprop",
        {"lr": 0.02, "alpha": 0.9, "eps": 1e-6, "weight_decay": 0.1},
    ),
    "adagrad": (optim.Adagrad(), "Adagrad", {}),
    "adagrad_decay": (
        optim.Adagrad(0.05, 1e-8, 0.1, 0.3),
        "Adagrad",
        {"lr": 0.05, "eps": 1e-8, "weight_decay": 0.1, "initial_accumulator_value": 0.3},
    ),
}
EACH = pytest.mark.parametrize("name", CASES)


class Reference:
    """The update of one optimizer in NumPy float64, hyper-parameters read at every step."""

    def __init__(self, opt, params):
        self.opt, self.params, self.step = opt, params, 0
        self.numbers = {
            field: getattr(opt, field)
            for field in ("lr", "momentum", "dampening", "weight_decay", "eps", "alpha")
            if hasattr(opt, field)
        }
        if hasattr(opt, "betas"):
            self.numbers["beta1"], self.numbers["beta2"] = opt.betas
        start = getattr(opt, "initial_accumulator_value", 0.0)
        self.first = {name: np.full_like(p, start) for name, p in params.items()}
        self.second = {name: np.zeros_like(p) for name, p in params.items()}

    def update(self, grads):
        n, kind = self.numbers, type(self.opt).__name__
        lr, decay = n["lr"], n["weight_decay"]
        self.step += 1
        for name, grad in grads.items():
            p, m, v = self.params[name], self.first[name], self.second[name]
            if kind == "AdamW":
                p *= 1 - lr * decay
            else:
                grad = grad + decay * p
            if kind == "SGD":
                if n["momentum"]:
                    fresh = self.step == 1
                    m[...] = grad if fresh else n["momentum"] * m + (1 - n["dampening"]) * grad
                    grad = grad + n["momentum"] * m if self.opt.nesterov else m
                p -= lr * grad
            elif kind in ("Adam", "AdamW"):
                m[...] = n["beta1"] * m + (1 - n["beta1"]) * grad
                v[...] = n["beta2"] * v + (1 - n["beta2"]) * grad**2
                first, second = 1 - n["beta1"] ** self.step, 1 - n["beta2"] ** self.step
                p -= lr * (m / first) / (np.sqrt(v / second) + n["eps"])
            elif kind == "RMSprop":
                m[...] = n["alpha"] * m + (1 - n["alpha"]) * grad**2
                p -= lr * grad / (np.sqrt(m) + n["eps"])
            else:
                m += grad**2
                p -= lr * grad / (np.sqrt(m) + n["eps"])


SIZES = (5, 4, 3)  # rows, in, out


def start_values(rng, dtype="float64"):
    _, width, out = SIZES
    return {
        "w": rng.normal(size=(out, width)).astype(dtype),
        "b": rng.normal(size=out).astype(dtype),
    }


def training(opt, device="cpu", dtype="float64", params=None, **options):
    """A linear regression whose gradients are outputs as well."""
    rows, width, out = SIZES
    g = aicf.Graph("regression")
    w, b = g.param("w", (out, width), dtype), g.param("b", (out,), dtype)
    x, t = g.input("x", (rows, width), dtype), g.input("t", (rows, out), dtype)
    loss = aicf.mse_loss(aicf.linear(x, w, b), t)
    g.output("loss", loss)
    if callable(opt):
        opt = opt(g)
    g.minimize(loss, opt, **options)
    return g.compile(device=device, params=params)


def batch(rng, dtype="float64"):
    rows, width, out = SIZES
    return {
        "x": rng.normal(size=(rows, width)).astype(dtype),
        "t": rng.normal(size=(rows, out)).astype(dtype),
    }


def gradients(params, x, t):
    y = x @ params["w"].T + params["b"]
    dy = 2 * (y - t) / y.size
    return {"w": dy.T @ x, "b": dy.sum(0)}


def check_params(step, want, rtol=1e-11):
    for name, array in want.items():
        np.testing.assert_allclose(
            step.params[name].numpy(), array, rtol=rtol, atol=rtol, err_msg=name
        )


@EACH
def test_numpy(name, device, make_rng):
    rng = make_rng(1)
    params = start_values(rng)
    opt = CASES[name][0]
    step = training(opt, device, params=params)
    reference = Reference(opt, {k: a.copy() for k, a in params.items()})
    for _ in range(STEPS):
        values = batch(rng)
        step(**values)
        reference.update(gradients(reference.params, **values))
        check_params(step, reference.params)


@EACH
def test_torch(name, device, make_rng):
    """PyTorch's update and, where none are given, PyTorch's default values."""
    torch = pytest.importorskip("torch")
    rng = make_rng(2)
    params = start_values(rng)
    opt, kind, arguments = CASES[name]
    step = training(opt, device, params=params)
    mine = {k: torch.tensor(a, requires_grad=True) for k, a in params.items()}
    theirs = getattr(torch.optim, kind)(mine.values(), **arguments)
    for _ in range(STEPS):
        values = batch(rng)
        out = step(**values)
        x, t = torch.from_numpy(values["x"]), torch.from_numpy(values["t"])
        loss = torch.nn.functional.mse_loss(x @ mine["w"].T + mine["b"], t)
        theirs.zero_grad()
        loss.backward()
        theirs.step()
        np.testing.assert_allclose(float(out["loss"]), loss.item(), rtol=1e-11)
        check_params(step, {k: p.detach().numpy() for k, p in mine.items()})


def test_default_values():
    """The same numbers as torch.optim's."""
    torch = pytest.importorskip("torch")
    p = [torch.zeros(1, requires_grad=True)]
    for name in ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad"):
        theirs = getattr(torch.optim, name)(p).defaults
        for field, value in vars(getattr(optim, name)()).items():
            assert value == theirs[field], f"{name}.{field}"


CHANGES = {
    "lr": lambda i: 0.05 / (i + 1),
    "momentum": lambda i: 0.5 + 0.4 * math.sin(i),
    "dampening": lambda i: 0.1 + 0.1 * math.cos(i),
    "weight_decay": lambda i: 0.01 * (i % 4),
    "beta1": lambda i: 0.85 + 0.01 * (i % 5),
    "beta2": lambda i: 0.99 + 0.001 * (i % 7),
    "eps": lambda i: 1e-8 * (1 + i % 3),
    "alpha": lambda i: 0.9 + 0.01 * (i % 6),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@EACH
def test_changed_between_replays(name, dtype, device, make_rng):
    """50 steps, every hyper-parameter another number in each: replay has eager's bits."""
    rng = make_rng(3)
    params = start_values(rng, dtype)
    opt = CASES[name][0]
    eager, replayed = (training(opt, device, dtype, params) for _ in range(2))
    names = [f"opt.{n}" for n in CHANGES if f"opt.{n}" in eager.state]
    assert "opt.lr" in names
    reference = Reference(opt, {k: a.astype(np.float64) for k, a in params.items()})
    for i in range(50):
        values = batch(rng, dtype)
        for number in names:
            key = number.removeprefix("opt.")
            for step in (eager, replayed):
                step.set(number, CHANGES[key](i))
            reference.numbers[key] = CHANGES[key](i)
        if i % 2 or device != "cpu":
            replayed(**values)
        else:
            for key, array in values.items():
                replayed.bind(**{key: array})
            replayed.replay()
        eager.run(**values)
        wide = {k: a.astype(np.float64) for k, a in values.items()}
        reference.update(gradients(reference.params, **wide))
        for key, array in eager.state_dict().items():
            assert_bits(replayed.state_dict()[key], array, f"step {i}, {key}")
    check_params(replayed, reference.params, 1e-10 if dtype == "float64" else 2e-3)


@EACH
def test_resumed_from_checkpoint(name, device, tmp_path, make_rng):
    """10 steps, a checkpoint, 10 more in another Step: the bits of 20 in one."""
    rng = make_rng(4)
    batches = [batch(rng, "float32") for _ in range(20)]
    params = start_values(rng, "float32")
    whole, first, second = (training(CASES[name][0], device, "float32", params) for _ in range(3))
    for values in batches:
        whole(**values)
    for values in batches[:10]:
        first(**values)
    first.save(tmp_path / "half")
    second.load(tmp_path / "half")
    for values in batches[10:]:
        second(**values)
    for key, array in whole.state_dict().items():
        assert_bits(second.state_dict()[key], array, key)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@EACH
def test_half_params_train(name, dtype, device, make_rng):
    """Hyper-parameters stay float32 beside half params; the loss falls."""
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    rng = make_rng(5)
    rows, width, out = SIZES
    g = aicf.Graph("half")
    x, t = g.input("x", (rows, width)), g.input("t", (rows, out))
    w = g.param("w", (out, width), dtype, init=aicf.init.zeros())
    loss = aicf.mse_loss(aicf.cast(aicf.linear(aicf.cast(x, dtype), w), "float32"), t)
    g.minimize(loss, CASES[name][0])
    g.output("loss", loss)
    step = g.compile(device=device)
    values = batch(rng, "float32")
    losses = [float(step(**values)["loss"]) for _ in range(30)]
    assert step.state["opt.lr"].dtype == "float32" and step.params["w"].dtype == dtype
    assert np.isfinite(losses).all() and losses[-1] < losses[0]


# ---- gradient clipping


@pytest.mark.parametrize("limit", [1e-3, 0.5, 1e6])
def test_clip_grad_norm(limit, device, make_rng):
    torch = pytest.importorskip("torch")
    rng = make_rng(6)
    params = start_values(rng)
    step = training(optim.SGD(0.5), device, params=params, clip_norm=limit)
    mine = {k: torch.tensor(a, requires_grad=True) for k, a in params.items()}
    theirs = torch.optim.SGD(mine.values(), lr=0.5)
    for _ in range(STEPS):
        values = batch(rng)
        step(**values)
        x, t = torch.from_numpy(values["x"]), torch.from_numpy(values["t"])
        theirs.zero_grad()
        torch.nn.functional.mse_loss(x @ mine["w"].T + mine["b"], t).backward()
        torch.nn.utils.clip_grad_norm_(mine.values(), limit)
        theirs.step()
        check_params(step, {k: p.detach().numpy() for k, p in mine.items()})


def test_clip_norm_is_a_number_of_the_step(device, make_rng):
    """`opt.clip_norm` changes between replays; NumPy says how far the params move."""
    rng = make_rng(7)
    params = start_values(rng)
    step = training(optim.SGD(1.0), device, params=params, clip_norm=1.0)
    for limit in (1.0, 0.25, 1e-4, 1e9):
        step.set("opt.clip_norm", limit)
        before = {k: a.numpy() for k, a in step.params.items()}
        values = batch(rng)
        step(**values)
        grads = gradients(before, **values)
        norm = math.sqrt(sum((a**2).sum() for a in grads.values()))
        scale = min(1.0, limit / (norm + 1e-6))
        check_params(step, {k: before[k] - scale * grads[k] for k in grads})


def test_clip_norm_of_groups_is_a_number_of_the_step(device):
    """One limit for the norm of all groups together, as `opt.clip_norm` of one optimizer."""
    g = aicf.Graph()
    u, w = (g.param(n, (3,), init=aicf.init.constant(2.0)) for n in "uw")
    groups = {"u": optim.SGD(1.0), "*": optim.SGD(0.5)}
    g.minimize(aicf.sum(u * 3.0) + aicf.sum(w * 4.0), groups, clip_norm=1.0)
    step = g.compile(device=device)
    norm = math.sqrt(3 * 9 + 3 * 16)
    wanted = {"u": np.full(3, 2.0), "w": np.full(3, 2.0)}
    for limit in (1.0, 0.25, 1e9):
        step.set("opt.clip_norm", limit)
        step.replay()
        scale = min(1.0, limit / (norm + 1e-6))
        wanted["u"] -= scale * 3.0
        wanted["w"] -= 0.5 * scale * 4.0
        for name, value in wanted.items():
            np.testing.assert_allclose(step.params[name], value, rtol=1e-6)


@pytest.mark.parametrize("groups", [False, True])
@pytest.mark.parametrize("limit", [0, -1.0, math.nan])
def test_a_limit_that_is_none_says_where(groups, limit):
    g = aicf.Graph()
    w = g.param("w", (3,))
    optimizer = {"*": optim.SGD(1.0)} if groups else optim.SGD(1.0)
    with pytest.raises(aicf.GraphError, match="^minimize: clip_norm is .*; need clip_norm > 0"):
        g.minimize(aicf.sum(w), optimizer, clip_norm=limit)
    with pytest.raises(aicf.GraphError, match="^clip_grad_norm: max_norm is .*; need max_norm > 0"):
        optim.clip_grad_norm({w: w * 2.0}, limit)


# ---- schedules


def schedule_values(make, count, device):
    g = aicf.Graph("schedule")
    g.output("lr", make(g.step_count()), keep=count)
    step = g.compile(device=device)
    return step.replay(count)["lr"].numpy()


@pytest.mark.parametrize("warmup, total", [(0, 10), (5, 30), (1, 7)])
def test_warmup_cosine(warmup, total, device):
    got = schedule_values(
        lambda step: optim.warmup_cosine(step, 0.3, warmup, total, floor=0.03), total + 5, device
    )
    for i, lr in enumerate(got):
        done = min(max((i - warmup) / (total - warmup), 0), 1)
        want = 0.03 + 0.27 * (1 + math.cos(math.pi * done)) / 2
        if i < warmup:
            want = 0.3 * (i + 1) / warmup
        assert lr == pytest.approx(want, rel=2e-6), i


def test_cosine_equals_torch(device):
    torch = pytest.importorskip("torch")
    theirs = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(theirs, T_max=20, eta_min=0.01)
    wanted = []
    for _ in range(21):
        wanted.append(theirs.param_groups[0]["lr"])
        theirs.step()
        schedule.step()
    got = schedule_values(lambda s: optim.warmup_cosine(s, 0.3, 0, 20, 0.01), 21, device)
    np.testing.assert_allclose(got, wanted, rtol=2e-6)


@pytest.mark.parametrize("size", [1, 3, 7, 10, 49, 97])
def test_step_decay(size, device):
    """Each drop at its step and not one beside it, however 1 / size is rounded."""
    got = schedule_values(lambda step: optim.step_decay(step, 0.4, size, 0.5), 300, device)
    want = [0.4 * 0.5 ** (i // size) for i in range(300)]
    np.testing.assert_allclose(got, want, rtol=3e-6, atol=1e-37)


def test_schedule_drives_training(device, make_rng):
    """The rate of step i in the update of step i, in eager and in replay."""
    rng = make_rng(8)
    params = start_values(rng)

    def opt(g):
        lr = aicf.cast(optim.warmup_cosine(g.step_count(), 0.1, 4, 12), "float64")
        return optim.AdamW(lr=lr)

    eager, replayed = (training(opt, device, params=params) for _ in range(2))
    assert "opt.lr" not in eager.state
    reference = Reference(optim.AdamW(), {k: a.copy() for k, a in params.items()})
    for i in range(15):
        values = batch(rng)
        eager.run(**values)
        replayed(**values)
        done = min(max((i - 4) / 8, 0), 1)
        reference.numbers["lr"] = (
            0.1 * (i + 1) / 4 if i < 4 else 0.1 * (1 + math.cos(math.pi * done)) / 2
        )
        reference.update(gradients(reference.params, **values))
        check_params(replayed, reference.params, 1e-6)
        for key, array in eager.state_dict().items():
            assert_bits(replayed.state_dict()[key], array, key)


# ---- gradient accumulation: two Steps over one set of params and sums


def accumulation(device, parts, params, opt):
    """(accumulate, apply): the first adds a batch's gradient to `sum.*`, the second uses it up."""
    rows, width, out = SIZES

    g = aicf.Graph("accumulate")
    w, b = g.param("w", (out, width), "float64"), g.param("b", (out,), "float64")
    x, t = g.input("x", (rows, width), "float64"), g.input("t", (rows, out), "float64")
    loss = aicf.mse_loss(aicf.linear(x, w, b), t)
    for p, grad in g.backward(loss).items():
        total = g.state(f"sum.{p.name}", p.shape, p.dtype)
        g.assign(total, total + grad * (1.0 / parts))
    g.output("loss", loss)
    accumulate = g.compile(device=device, params=params)

    g = aicf.Graph("apply")
    w, b = g.param("w", (out, width), "float64"), g.param("b", (out,), "float64")
    grads = {}
    for p in (w, b):
        grads[p] = g.state(f"sum.{p.name}", p.shape, p.dtype)
        g.assign(grads[p], grads[p] * 0.0)
    g.update(grads, opt)
    return accumulate, g.compile(device=device, share=accumulate)


@pytest.mark.parametrize("name", ["sgd_momentum", "adamw", "rmsprop"])
def test_accumulation(name, device, make_rng):
    """Four batches added up train as one batch of four times the rows."""
    rng = make_rng(9)
    params = start_values(rng)
    opt = CASES[name][0]
    accumulate, apply = accumulation(device, 4, params, opt)
    reference = Reference(opt, {k: a.copy() for k, a in params.items()})
    for _ in range(6):
        batches = [batch(rng) for _ in range(4)]
        for values in batches:
            accumulate(**values)
        before = accumulate.params["w"].numpy()
        apply()
        assert (accumulate.params["w"].numpy() != before).any()
        assert not accumulate.state["sum.w"].numpy().any()
        whole = {k: np.concatenate([v[k] for v in batches]) for k in ("x", "t")}
        reference.update(gradients(reference.params, **whole))
        check_params(accumulate, reference.params)
        check_params(apply, reference.params)


# ---- what is refused


@pytest.mark.parametrize(
    "call, error, text",
    [
        (lambda g, loss: g.minimize(loss, optim.SGD(nesterov=True)), aicf.GraphError, "momentum"),
        (
            lambda g, loss: g.minimize(loss, optim.SGD(0.1, 0.9, 0.5, nesterov=True)),
            aicf.GraphError,
            "dampening 0",
        ),
        (lambda g, loss: g.minimize(loss, optim.Adam(lr="1")), aicf.DTypeError, "a number"),
        (lambda g, loss: g.minimize(loss, optim.Adam(lr=True)), aicf.DTypeError, "a number"),
        (
            lambda g, loss: g.minimize(loss, optim.Adam(lr=g.input("r", (2,)))),
            aicf.DTypeError,
            "rank 0",
        ),
        (lambda g, loss: optim.clip_grad_norm({}, 1.0), aicf.GraphError, "at least one"),
        (
            lambda g, loss: optim.warmup_cosine(g.step_count(), 1.0, 5, 5),
            aicf.GraphError,
            "warmup < total",
        ),
        (lambda g, loss: optim.step_decay(g.step_count(), 1.0, 0), aicf.GraphError, ">= 1"),
    ],
)
def test_misuse(call, error, text):
    g = aicf.Graph("misuse")
    loss = g.param("w", (3,)).sum()
    with pytest.raises(error, match=text):
        call(g, loss)


def test_two_optimizers(device, make_rng):
    """Two losses with names of their own; each counts its own steps."""
    rng = make_rng(10)
    g = aicf.Graph("two")
    x = g.input("x", (3,), "float64")
    a, b = g.param("a", (3,), "float64"), g.param("b", (3,), "float64")
    g.minimize(aicf.mse_loss(a, x), optim.Adam(0.1), params=[a], name="first")
    g.minimize(aicf.mse_loss(b, x), optim.SGD(0.1), params=[b], name="second")
    g.output("x", x)
    step = g.compile(device=device)
    x = rng.normal(size=3)
    for _ in range(200):
        outputs_of(step(x=x))
    assert int(step.state["first.step"]) == 200
    np.testing.assert_allclose(step.params["a"].numpy(), x, atol=1e-2)
    np.testing.assert_allclose(step.params["b"].numpy(), x, atol=1e-5)


def test_schedules_are_not_range_checked():
    """A Value is any number once it runs."""
    g = aicf.Graph("schedule")
    w = g.param("w", (2,), init=aicf.init.ones())
    rate = aicf.cast(g.step_count(), "float32") - 1.0
    g.minimize((w * w).sum(), optim.SGD(lr=rate), clip_norm=rate + 5.0)
    step = g.compile(device="cpu")
    step()
    assert (step.params["w"].numpy() > 1).all()  # lr was -1


# ---- averages of params


@pytest.mark.parametrize("before", [False, True])
def test_ema_takes_params_as_they_are_after_the_step(device, before):
    """As PyTorch's AveragedModel: k steps give the average of k contents, the first whole."""
    g = aicf.Graph("ema")
    x, w = g.input("x", (3,)), g.param("w", (3,))
    g.minimize((w * x).sum(), aicf.optim.Adam(lr=0.5))
    g.ema(0.75, before=before)
    step = g.compile(device=device, params={"w": np.float32([1, 2, 3])})
    assert np.isnan(step.averages()["w"].numpy()).all()
    want, now = None, None
    for k in range(4):
        now = step.params["w"].numpy()
        step(x=np.float32([1, -1, k]))
        new = now if before else step.params["w"].numpy()
        want = new if want is None else want + (new - want) * np.float32(0.25)
        assert_bits(step.averages()["w"].numpy(), want)
    step.set("ema.decay", 0.0)
    now = step.params["w"].numpy()
    step(x=np.ones(3, np.float32))
    assert_bits(step.averages()["w"].numpy(), now if before else step.params["w"].numpy())


def test_ema_beside_torch():
    torch = pytest.importorskip("torch")
    linear = torch.nn.Linear(4, 2)
    mean = torch.optim.swa_utils.AveragedModel(
        linear, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    )
    start = {
        f"0.{k}": v.detach().numpy().copy() for k, v in zip("Wb", linear.parameters(), strict=True)
    }
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.1)
    g = aicf.Graph("ema")
    x = g.input("x", (8, 4))
    g.minimize(aicf.mean(g.dense("0", x, 2) ** 2), aicf.optim.SGD(lr=0.1))
    g.ema(0.9)
    step, rng = g.compile(device="cpu", params=start), np.random.default_rng(0)
    for _ in range(5):
        data = rng.standard_normal((8, 4), np.float32)
        step(x=data)
        optimizer.zero_grad()
        (linear(torch.from_numpy(data)) ** 2).mean().backward()
        optimizer.step()
        mean.update_parameters(linear)
    for ours, theirs in zip(step.averages().values(), mean.module.parameters(), strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.detach().numpy(), rtol=1e-5, atol=1e-6)
    test = aicf.Graph("test")
    test.output("y", test.dense("0", test.input("x", (8, 4)), 2))
    with torch.no_grad():
        want = mean(torch.from_numpy(data)).numpy()
    found = test.compile(device="cpu", params=step.averages())(x=data)["y"]
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)


def test_ema_is_refused_before_there_is_an_update():
    g = aicf.Graph("early")
    w, v = g.param("w", (2,)), g.param("v", (2,))
    s = g.state("s", (2,))
    with pytest.raises(aicf.GraphError, match="changes no param yet; need minimize"):
        g.ema(0.9)
    g.minimize((w * w).sum(), aicf.optim.SGD(lr=0.1))
    for wrong in (v, s):
        with pytest.raises(aicf.GraphError, match="ema: .*need a param of a minimize"):
            g.ema(0.9, [wrong])
    for decay, error in ((1.0, aicf.GraphError), (-0.1, aicf.GraphError), ("x", aicf.DTypeError)):
        with pytest.raises(error, match="decay"):
            g.ema(decay)
    g.ema(0.9)
    assert list(g.compile(device="cpu").averages()) == ["w"]
    with pytest.raises(aicf.GraphError, match="there are none"):
        g.compile(device="cpu").averages("mean")
