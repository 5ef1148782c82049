"""Halves its batch until it fits, and trains with what is left."""

import argparse
import gc

import torch
from tiny import build_model, loss_of, make_batch


def train(batch_size, steps):
    model = build_model().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps):
        loss_of(model, make_batch(batch_size)).backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: batch {batch_size}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()

    batch_size = args.batch_size
    while batch_size > 0:
        try:
            return train(batch_size, args.steps)
        except torch.cuda.OutOfMemoryError:
            print(f"batch {batch_size} does not fit", flush=True)
        gc.collect()
        torch.cuda.empty_cache()
        batch_size //= 2
    raise SystemExit("no batch fits")


if __name__ == "__main__":
    main()
