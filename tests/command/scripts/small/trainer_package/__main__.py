"""Train the package's model."""

import argparse

import torch

from .model import Net, loss_of


def main():
    parser = argparse.ArgumentParser(prog="trainer_package")
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()

    model = Net().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(100_000):
        loss_of(model, torch.randn(args.batch_size, 512, 256, device="cuda")).backward()
        optimizer.step()
        optimizer.zero_grad()


main()
