"""Measures each of its own steps, for which it resets PyTorch's peak statistics."""

import argparse

import torch
from tiny import build_model, loss_of, make_batch


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()

    model = build_model().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(100_000):
        loss_of(model, make_batch(args.batch_size)).backward()
        peak = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.empty_cache()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: {peak} bytes", flush=True)
        torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    main()
