"""Trains on a dataset of 100 samples, so that no batch is larger than that."""

import argparse

import torch
from tiny import LENGTH, WIDTH, build_model, loss_of
from torch.utils.data import DataLoader


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=10_000)
    args = parser.parse_args()

    loader = DataLoader(torch.randn(100, LENGTH, WIDTH), batch_size=args.batch_size)
    model = build_model().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(args.epochs):
        for batch in loader:
            loss_of(model, batch.cuda()).backward()
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main()
