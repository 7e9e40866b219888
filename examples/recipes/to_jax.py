"""Params of a JAX program trained here, and taken back."""

import aicf
import jax
import jax.numpy as jnp
from aicf import nn


def predict(p, x):
    return jnp.tanh(x @ p["0.weight"].T + p["0.bias"]) @ p["2.weight"].T + p["2.bias"]


def main(steps=200):
    keys = iter(jax.random.split(jax.random.key(0), 4))
    shapes = {"0.weight": (16, 4), "0.bias": (16,), "2.weight": (1, 16), "2.bias": (1,)}
    params = {name: 0.3 * jax.random.normal(next(keys), shape) for name, shape in shapes.items()}
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    model.load_state_dict(params)

    @aicf.function
    def train(x, y):
        loss = aicf.mse_loss(model(x), y)
        aicf.minimize(loss, aicf.optim.Adam(lr=1e-2))
        return loss

    x = jax.random.normal(jax.random.key(1), (64, 4))
    y = jnp.prod(x[:, :2], axis=1, keepdims=True)
    losses = [float(train(x, y)) for _ in range(steps)]
    back = {name: jnp.asarray(array) for name, array in model.state_dict().items()}
    return losses, float(jnp.mean((predict(back, x) - y) ** 2)), float(train(x, y))
