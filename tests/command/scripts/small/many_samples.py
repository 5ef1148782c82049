"""Trains on small samples, of which tens of thousands fit."""

import argparse

import torch
from tiny import WIDTH, build_model, loss_of


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--grad-accum", type=int, default=1)
    args = parser.parse_args()

    model = build_model().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    while True:
        for _ in range(args.grad_accum):
            loss_of(model, torch.zeros(args.batch_size, 8, WIDTH, device="cuda")).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
