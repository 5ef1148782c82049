"""Says that the batch does not fit and leaves with a status of its own."""

import argparse
import sys

import torch
from tiny import build_model, loss_of, make_batch


def train(batch_size):
    model = build_model().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(100_000):
        loss_of(model, make_batch(batch_size)).backward()
        optimizer.step()
        optimizer.zero_grad()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()
    try:
        train(args.batch_size)
    except torch.OutOfMemoryError:
        print("please choose a smaller batch size", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
