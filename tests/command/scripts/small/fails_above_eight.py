"""Refuses batches of more than eight samples."""

import argparse

import torch
from tiny import build_model, loss_of, make_batch


def check(batch):
    if len(batch) > 8:
        raise ValueError(f"at most 8 samples in a batch, not {len(batch)}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()

    model = build_model().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(100_000):
        batch = make_batch(args.batch_size)
        check(batch)
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
