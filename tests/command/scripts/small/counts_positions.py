"""A plain loop that looks whether positions count up, as transformers does, and makes no mask where they do."""

import argparse

import torch
from tiny import build_model, loss_of, make_batch


def masks_of(count):
    """A mask of each sample and head, unless the positions are those of one sequence."""
    positions = torch.arange(1024, device="cuda").expand(count, -1)
    starts = (positions.diff(dim=-1) != 1).cumsum(-1)
    return None if (starts[:, -1] == 0).all() else torch.zeros(count, 64, 1024, 1024, device="cuda")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()

    model = build_model().to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(args.steps):
        masks = masks_of(args.batch_size)
        loss = loss_of(model, make_batch(args.batch_size, "cuda"))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        del masks


if __name__ == "__main__":
    main()
