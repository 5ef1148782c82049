"""Trains in a process that multiprocessing starts."""

import argparse

import torch
import torch.multiprocessing as mp
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
    parser.add_argument("--start-method", default="spawn", choices=["fork", "spawn", "forkserver"])
    args = parser.parse_args()

    child = mp.get_context(args.start_method).Process(target=train, args=(args.batch_size,))
    child.start()
    child.join()
    raise SystemExit(child.exitcode)


if __name__ == "__main__":
    main()
