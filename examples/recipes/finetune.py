"""The body of a PyTorch model, frozen, with a new head; then all of it, and back to PyTorch."""

import aicf
import numpy as np
import torch
from aicf import nn


def main():
    theirs = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    body = {name: w for name, w in theirs.state_dict().items() if name.startswith("0.")}
    model.load_state_dict(body, strict=False)
    x = np.random.default_rng(0).standard_normal((256, 4), np.float32)
    labels = x[:, :3].argmax(1)

    @aicf.function
    def train(x, labels, rate):
        loss = aicf.cross_entropy(model(x), labels)
        aicf.minimize(loss, aicf.optim.Adam(lr=rate))
        return loss

    model[0].requires_grad_(False)
    losses = [float(train(x, labels, 1e-2)) for _ in range(100)]
    kept = (model.state_dict()["0.weight"] == body["0.weight"].numpy()).all()
    model[0].requires_grad_(True)
    losses += [float(train(x, labels, 1e-3)) for _ in range(200)]
    theirs.load_state_dict({k: torch.from_numpy(v) for k, v in model.state_dict().items()})
    right = theirs(torch.from_numpy(x)).argmax(1).numpy() == labels
    return losses, bool(kept), right.mean()
