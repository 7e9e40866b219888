"""A generator and a discriminator in turns: two optimizers, one state, one checkpoint."""

import aicf
import numpy as np
from aicf import nn


def main(path="gan.safetensors", steps=1500):
    rng, state, adam = np.random.default_rng(0), aicf.State(), aicf.optim.Adam(1e-3, (0.0, 0.999))
    maker = nn.Sequential(nn.Linear(4, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1), name="maker")
    judge = nn.Sequential(nn.Linear(1, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1), name="judge")

    def fresh():
        return maker(aicf.current_graph().random_normal((128, 4)))

    @aicf.function(state=state)
    def learn(real):
        wrong = aicf.softplus(judge(aicf.detach(fresh()))) + aicf.softplus(-judge(real))
        aicf.minimize(aicf.mean(wrong), adam, judge, name="judges")

    @aicf.function(state=state)
    def make():
        aicf.minimize(aicf.mean(aicf.softplus(-judge(made := fresh()))), adam, maker, name="makes")
        return made

    for _ in range(steps):
        learn(rng.normal(3, 0.5, (128, 1)).astype(np.float32))
        made = make().numpy()
    state.save(path)
    return made.mean(), made.std()
