"""Time of one training step (forward, loss, backward, Adam) of two MLPs, ours and the peers'.

    pytest bench --benchmark-group-by=group --benchmark-columns=median,min,rounds

All rows of a group start from the same weights and data and are timed in one run; each first
shows that it computes the same loss. Replays and scans are timed 100 steps at a time: divide by
`steps` in the extra information, or read `us_per_step` there.
"""

import itertools
import time

import aicf
import numpy as np
import pytest

LR, B1, B2, EPS = 1e-3, 0.9, 0.999, 1e-8
CONFIGS = {
    "8-8-8 b64 mse": ((8, 8, 8), 64, "mse"),
    "784-512-512-10 b128 ce": ((784, 512, 512, 10), 128, "ce"),
}
CHECKED = 20  # the loss after so many steps is compared


def data(config):
    """Weights as (in, out), biases, one random batch."""
    sizes, batch, loss = CONFIGS[config]
    rng = np.random.default_rng(0)
    weights = [
        rng.standard_normal((i, o), dtype=np.float32) * np.float32((2 / i) ** 0.5)
        for i, o in itertools.pairwise(sizes)
    ]
    biases = [np.zeros(o, np.float32) for o in sizes[1:]]
    x = rng.standard_normal((batch, sizes[0]), dtype=np.float32)
    if loss == "mse":
        return weights, biases, x, rng.standard_normal((batch, sizes[-1]), dtype=np.float32), loss
    return weights, biases, x, rng.integers(0, sizes[-1], batch), loss


def aicf_step(config):
    weights, biases, x, y, loss_kind = data(config)
    g = aicf.Graph("bench")
    h, target = g.input("x", x.shape), g.input("y", y.shape, str(y.dtype))
    params = {}
    for n, (w, b) in enumerate(zip(weights, biases, strict=True)):
        h = g.dense(str(n), h, w.shape[1])
        params[f"{n}.W"], params[f"{n}.b"] = np.ascontiguousarray(w.T), b
        if n + 1 < len(weights):
            h = aicf.relu(h)
    loss = (aicf.mse_loss if loss_kind == "mse" else aicf.cross_entropy)(h, target)
    g.minimize(loss, aicf.optim.Adam(lr=LR, betas=(B1, B2), eps=EPS))
    g.output("loss", loss)
    return g.compile(device="cpu", params=params), {"x": x, "y": y}


def peer_aicf_call(config):
    step, feed = aicf_step(config)
    return lambda: step(**feed), lambda out: float(out["loss"]), 1


def peer_aicf_replay(config):
    step, feed = aicf_step(config)
    step(**feed)
    for _ in range(CHECKED - 1):
        step.replay()
    loss = float(step.outputs["loss"])
    return lambda: step.replay(100), lambda out: loss, 100


def peer_numpy(config):
    weights, biases, x, y, loss_kind = data(config)
    params, n, count = weights + biases, len(weights), [0]
    m, v = [np.zeros_like(p) for p in params], [np.zeros_like(p) for p in params]
    scratch = [np.empty_like(p) for p in params]

    def step():
        count[0] += 1
        outer = [x]
        for i in range(n):
            h = outer[-1] @ weights[i]
            h += biases[i]
            if i < n - 1:
                np.maximum(h, 0, out=h)
            outer.append(h)
        if loss_kind == "mse":
            d = outer[-1] - y
            loss = float(np.mean(d * d))
            d *= np.float32(2 / d.size)
        else:
            d = outer[-1] - outer[-1].max(1, keepdims=True)
            np.exp(d, out=d)
            d /= d.sum(1, keepdims=True)
            rows = np.arange(len(y))
            loss = float(-np.log(d[rows, y]).mean())
            d[rows, y] -= 1
            d *= np.float32(1 / len(y))
        grads = [None] * (2 * n)
        for i in reversed(range(n)):
            grads[i], grads[n + i] = outer[i].T @ d, d.sum(0)
            if i:
                d = d @ weights[i].T
                d *= outer[i] > 0
        c1, c2 = 1 - B1 ** count[0], 1 - B2 ** count[0]
        for p, g, mean, square, t in zip(params, grads, m, v, scratch, strict=True):
            mean *= np.float32(B1)
            np.multiply(g, np.float32(1 - B1), out=t)
            mean += t
            square *= np.float32(B2)
            np.multiply(g, g, out=t)
            t *= np.float32(1 - B2)
            square += t
            np.sqrt(square, out=t)
            t *= np.float32(1 / c2**0.5)
            t += np.float32(EPS)
            np.divide(mean, t, out=t)
            t *= np.float32(LR / c1)
            p -= t
        return loss

    return step, float, 1


def peer_torch(config, compiled):
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    weights, biases, x, y, loss_kind = data(config)
    weights = [torch.from_numpy(w.T.copy()).requires_grad_() for w in weights]
    biases = [torch.from_numpy(b).requires_grad_() for b in biases]
    x, y = torch.from_numpy(x), torch.from_numpy(y)

    def forward(weights, biases, x, y):
        for i, (w, b) in enumerate(zip(weights, biases, strict=True)):
            x = functional.linear(x, w, b)
            if i < len(weights) - 1:
                x = functional.relu(x)
        return (functional.mse_loss if loss_kind == "mse" else functional.cross_entropy)(x, y)

    optimizer = torch.optim.Adam(weights + biases, lr=LR, betas=(B1, B2), eps=EPS, fused=True)
    if compiled:
        forward = torch.compile(forward, fullgraph=True)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = forward(weights, biases, x, y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, float, 1


def peer_torch_whole(config):
    """Forward, backward and Adam as one compiled function."""
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    weights, biases, x, y, loss_kind = data(config)
    params = [torch.from_numpy(p) for p in [*(w.T.copy() for w in weights), *biases]]
    m, v = [torch.zeros_like(p) for p in params], [torch.zeros_like(p) for p in params]
    x, y, n, count = torch.from_numpy(x), torch.from_numpy(y), len(weights), [0]

    def forward(params):
        h = x
        for i in range(n):
            h = functional.linear(h, params[i], params[n + i])
            h = functional.relu(h) if i < n - 1 else h
        return (functional.mse_loss if loss_kind == "mse" else functional.cross_entropy)(h, y)

    @torch.compile(fullgraph=True)
    def train(params, m, v, c1, c2):
        grads, loss = torch.func.grad_and_value(forward)(params)
        for p, g, mean, square in zip(params, grads, m, v, strict=True):
            mean.mul_(B1).add_(g, alpha=1 - B1)
            square.mul_(B2).addcmul_(g, g, value=1 - B2)
            p.sub_(LR / c1 * mean / (square.sqrt() / c2.sqrt() + EPS))
        return loss

    @torch.no_grad()
    def step():
        count[0] += 1
        bias = [torch.tensor(1 - b ** count[0]) for b in (B1, B2)]
        return train(params, m, v, *bias)

    return step, float, 1


def peer_jax(config, steps):
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    weights, biases, x, y, loss_kind = data(config)
    n = len(weights)
    params = [jnp.asarray(p) for p in weights + biases]
    state = [
        (
            params,
            [jnp.zeros_like(p) for p in params],
            [jnp.zeros_like(p) for p in params],
            jnp.zeros((), jnp.float32),
        )
    ]
    x, y = jnp.asarray(x), jnp.asarray(y)

    def forward(params):
        h = x
        for i in range(n):
            h = h @ params[i] + params[n + i]
            if i < n - 1:
                h = jnp.maximum(h, 0)
        if loss_kind == "mse":
            return jnp.mean((h - y) ** 2)
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(h), y[:, None], 1))

    def train(state):
        params, m, v, t = state
        loss, grads = jax.value_and_grad(forward)(params)
        t = t + 1
        c1, c2 = 1 - B1**t, 1 - B2**t
        m = [B1 * a + (1 - B1) * g for a, g in zip(m, grads, strict=True)]
        v = [B2 * a + (1 - B2) * g * g for a, g in zip(v, grads, strict=True)]
        params = [
            p - LR / c1 * a / (jnp.sqrt(b) / jnp.sqrt(c2) + EPS)
            for p, a, b in zip(params, m, v, strict=True)
        ]
        return (params, m, v, t), loss

    if steps > 1:
        train_many = jax.jit(
            lambda s: jax.lax.scan(lambda s, _: train(s), s, None, length=steps), donate_argnums=0
        )
    else:
        train_many = jax.jit(train, donate_argnums=0)

    def step():
        state[0], loss = train_many(state[0])
        jax.block_until_ready((state[0], loss))
        return loss

    return step, lambda loss: float(loss if steps == 1 else loss[CHECKED - 1]), steps


PEERS = {
    "aicf call": peer_aicf_call,
    "aicf replay(100)": peer_aicf_replay,
    "numpy": peer_numpy,
    "torch eager": lambda config: peer_torch(config, False),
    "torch.compile": lambda config: peer_torch(config, True),
    "torch.compile whole step": peer_torch_whole,
    "jax jit": lambda config: peer_jax(config, 1),
    "jax scan(100)": lambda config: peer_jax(config, 100),
}


@pytest.fixture(scope="module")
def expected():
    """The NumPy loss after CHECKED steps, by configuration."""
    losses = {}
    for config in CONFIGS:
        step, _, _ = peer_numpy(config)
        losses[config] = [step() for _ in range(CHECKED)][-1]
    return losses


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("peer", PEERS)
def test_train_step(peer, config, benchmark, expected):
    try:
        step, loss_of, steps = PEERS[peer](config)
        out = None
        for _ in range(CHECKED if steps == 1 else 1):
            out = step()
    except Exception as error:
        if peer.startswith(("torch.compile", "jax")):  # may lack a compiler here
            pytest.skip(f"{peer}: {error}")
        raise
    assert loss_of(out) == pytest.approx(expected[config], rel=1e-3)
    benchmark.group = config
    start = time.perf_counter()
    step()
    rounds = int(min(max(2 / (time.perf_counter() - start), 3), 300))  # some 2 seconds a row
    benchmark.pedantic(step, rounds=rounds, iterations=1, warmup_rounds=3 if steps == 1 else 1)
    if benchmark.stats:
        benchmark.extra_info["steps"] = steps
        benchmark.extra_info["us_per_step"] = benchmark.stats.stats.median / steps * 1e6
        benchmark.name = f"{peer}: {benchmark.extra_info['us_per_step']:.1f} us a step"
