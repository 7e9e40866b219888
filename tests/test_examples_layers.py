"""The convolutional and the transformer example: few steps, held-out loss falls, checkpoint."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "name, steps, needs, fall",
    [("digits_conv", 40, "sklearn", 0.5), ("char_transformer", 12, "numpy", 0.95)],
)
@pytest.mark.parametrize("bar", [True, False])
def test_learns(name, steps, needs, fall, bar, tmp_path, monkeypatch, capsys):
    """With tqdm where it is installed, and with plain lines."""
    pytest.importorskip(needs)
    module = load(name)
    if not bar:
        monkeypatch.setattr(module, "tqdm", None)
    before, after = module.main(["--steps", str(steps), "--out", str(tmp_path)])
    out = capsys.readouterr().out
    assert after < before * fall
    assert (tmp_path / "checkpoint.safetensors").exists()
    assert f"from the checkpoint: held-out loss {after:.4f}" in out
    assert bar or f"step {steps}/{steps}\n" in out


# ---- gradients of gradients, beside the same training in PyTorch


def torch_params(torch, step):
    return {
        name: torch.from_numpy(array.numpy().astype(np.float64)).requires_grad_()
        for name, array in step.params.items()
    }


def perceptron(torch, p, x, first):
    """`first` of linear, then tanh of linear, then linear."""
    linear = torch.nn.functional.linear
    h = torch.tanh(linear(first(linear(x, p["0.W"], p["0.b"])), p["1.W"], p["1.b"]))
    return linear(h, p["2.W"], p["2.b"])


def penalty_loss(torch, p, real, made, share):
    def critic(x):
        return perceptron(torch, p, x, lambda h: torch.nn.functional.leaky_relu(h, 0.2))

    mixed = (real * share + made * (1 - share)).requires_grad_()
    (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
    penalty = ((slope.square().sum(1) + 1e-12).sqrt() - 1).square().mean()
    return critic(made).mean() - critic(real).mean() + 10 * penalty


def maml_loss(torch, p, known_x, known_y, asked_x, asked_y):
    total = 0
    for tasks in zip(known_x, known_y, asked_x, asked_y, strict=True):
        x, y, new_x, new_y = tasks

        def model(q, at):
            return torch.tanh(at * q[0] + q[1]) @ q[2] + q[3]

        start = [p[name] for name in ("w1", "b1", "w2", "b2")]
        error = (model(start, x) - y).square().mean()
        grads = torch.autograd.grad(error, start, create_graph=True)
        learnt = [q - 0.1 * grad for q, grad in zip(start, grads, strict=True)]
        total = total + (model(learnt, new_x) - new_y).square().mean()
    return total / len(known_x)


def pinn_loss(torch, p, x):
    x = x.requires_grad_()
    u = perceptron(torch, p, x, torch.tanh)
    (du,) = torch.autograd.grad(u.sum(), x, create_graph=True)
    (ddu,) = torch.autograd.grad(du.sum(), x, create_graph=True)
    rest = ddu + np.pi**2 * torch.sin(np.pi * x)
    ends = perceptron(torch, p, torch.tensor([[-1.0], [1.0]], dtype=torch.float64), torch.tanh)
    return rest.square().mean() + 10 * ends.square().mean()


def chars_loss(torch, p, text):
    text = text.long()
    weights = {name: value for name, value in p.items() if name.endswith("_l0")}
    hidden = weights["weight_hh_l0"].shape[1]
    lstm = torch.nn.LSTM(p["letters"].shape[1], hidden, dtype=torch.float64)
    y, _ = torch.func.functional_call(lstm, weights, (p["letters"][text[:-1]],))
    logits = torch.nn.functional.linear(y, p["next.W"], p["next.b"])
    return torch.nn.functional.cross_entropy(logits, text[1:])


@pytest.mark.parametrize(
    ("name", "loss_of", "adam"),
    [
        ("gradient_penalty", penalty_loss, {"lr": 1e-3, "betas": (0.5, 0.9)}),
        ("maml", maml_loss, {"lr": 1e-2}),
        ("pinn", pinn_loss, {"lr": 3e-3}),
        ("lstm_chars", chars_loss, {"lr": 5e-3}),
    ],
)
def test_losses_of_gradients(name, loss_of, adam):
    """Thirty steps of the example, eight over 500 characters, each loss as PyTorch has it."""
    torch = pytest.importorskip("torch")
    module, rng = load(name), np.random.default_rng(0)
    step = module.train_graph().compile(device="cpu", seed=0)
    params = torch_params(torch, step)
    optimizer = torch.optim.Adam(params.values(), **adam)
    for _ in range(8 if name == "lstm_chars" else 30):
        values = module.batch(rng)
        wide = {key: torch.from_numpy(a.astype(np.float64)) for key, a in values.items()}
        loss = loss_of(torch, params, **wide)
        optimizer.zero_grad()
        loss.backward()
        if name == "lstm_chars":
            torch.nn.utils.clip_grad_norm_(params.values(), 1.0)
        optimizer.step()
        assert float(step(**values)["loss"]) == pytest.approx(loss.item(), rel=1e-3, abs=1e-4)


def test_newton_by_hessian_vector_products():
    """Converges in a few steps to the loss that PyTorch's own second derivatives reach."""
    torch = pytest.importorskip("torch")
    module, rng = load("hessian_vector"), np.random.default_rng(0)
    step, w = module.products(), np.zeros(module.SIZE, np.float32)
    x = rng.standard_normal((module.ROWS, module.SIZE)).astype(np.float32)
    t = (x @ np.arange(module.SIZE) + rng.standard_normal(module.ROWS) > 0).astype(np.float32)

    def loss_of(v):
        logits = torch.from_numpy(x).double() @ v
        fit = torch.nn.functional.binary_cross_entropy_with_logits(
            logits, torch.from_numpy(t).double()
        )
        return fit + 0.005 * (v * v).sum()

    best = torch.zeros(module.SIZE, dtype=torch.float64)
    for _ in range(6):
        w, loss = module.newton_step(step, x, t, w)
        assert loss == pytest.approx(loss_of(best).item(), rel=1e-4)
        hessian = torch.autograd.functional.hessian(loss_of, best)
        slope = torch.autograd.functional.jacobian(loss_of, best)
        best = best - torch.linalg.solve(hessian, slope)
    assert np.abs(w - best.numpy()).max() < 1e-3


def test_a_pinn_solves_its_equation():
    module, rng = load("pinn"), np.random.default_rng(0)
    step = module.train_graph().compile(device="cpu", seed=0)
    for _ in range(1500):
        step(**module.batch(rng))
    x = np.linspace(-1, 1, module.POINTS, dtype=np.float32)[:, None]
    assert np.abs(step(x=x)["u"].numpy() - np.sin(np.pi * x)).max() < 0.05
