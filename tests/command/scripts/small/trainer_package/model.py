"""The model of the package, and its loss."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, inputs):
        return self.layers(inputs)


def loss_of(model, batch):
    return torch.nn.functional.mse_loss(model(batch), batch)
