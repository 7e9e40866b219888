"""Batches from workers of PyTorch's DataLoader, their last one short."""

import aicf
import torch
from aicf import nn


class Sums(torch.utils.data.Dataset):
    def __len__(self):
        return 200

    def __getitem__(self, i):
        x = torch.randn(8, generator=torch.Generator().manual_seed(i))
        return {"x": x, "y": x.sum(0, keepdim=True)}


def main(epochs=4, workers=2):
    loader = torch.utils.data.DataLoader(Sums(), 32, num_workers=workers)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))

    @aicf.function
    def train(batch):  # tensors go in as they are
        loss = aicf.mse_loss(model(batch["x"]), batch["y"])
        aicf.minimize(loss, aicf.optim.Adam(lr=1e-2))
        return loss

    losses = [float(train(batch)) for _ in range(epochs) for batch in loader]
    return losses, [entry.arguments["batch.x"] for entry in train.cache]
