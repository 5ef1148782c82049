"""Takes a batch size and trains with another one."""

import argparse

import torch
from tiny import build_model, loss_of, make_batch


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.parse_args()

    model = build_model().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(100_000):
        loss_of(model, make_batch(8)).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
