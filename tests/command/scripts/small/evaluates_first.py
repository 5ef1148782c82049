"""Evaluates before training, with a batch that needs more memory than training does."""

import argparse

import torch
from tiny import build_model, loss_of, make_batch


@torch.no_grad()
def evaluate(model, batch_size):
    model.eval()
    loss = loss_of(model, make_batch(batch_size))
    model.train()
    return loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--eval-batch-size", type=int, default=64)
    args = parser.parse_args()

    model = build_model().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(100_000):
        if step % 1000 == 0:
            print(f"step {step}: evaluation loss {evaluate(model, args.eval_batch_size):.4f}", flush=True)
        loss_of(model, make_batch(args.batch_size)).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
