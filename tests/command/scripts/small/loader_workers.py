"""Loads its batches in two worker processes, into pinned memory."""

import argparse

import torch
from tiny import LENGTH, WIDTH, build_model, loss_of
from torch.utils.data import DataLoader, Dataset


class Noise(Dataset):
    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        return torch.full((LENGTH, WIDTH), float(index))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--start-method", default=None, choices=["fork", "spawn", "forkserver"])
    args = parser.parse_args()

    loader = DataLoader(
        Noise(),
        batch_size=args.batch_size,
        num_workers=args.workers,
        pin_memory=True,
        persistent_workers=args.workers > 0,
        multiprocessing_context=args.start_method if args.workers else None,
    )
    model = build_model().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    while True:
        for batch in loader:
            loss_of(model, batch.to("cuda", non_blocking=True)).backward()
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main()
