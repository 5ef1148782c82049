"""Prints 10 MB before it trains, half of them on standard error."""

import argparse
import sys

import torch
from tiny import build_model, loss_of, make_batch

LINE = "x" * 99 + "\n"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()

    for _ in range(50):
        sys.stdout.write(LINE * 1000)
        sys.stderr.write(LINE * 1000)
    model = build_model().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(100_000):
        loss_of(model, make_batch(args.batch_size)).backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}", flush=True)


if __name__ == "__main__":
    main()
