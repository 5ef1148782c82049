"""A plain loop with gradient accumulation."""

import argparse

import torch
from tiny import build_model, loss_of, make_batch


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--grad-accum", type=int, default=1)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = build_model().to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(args.steps):
        for _ in range(args.grad_accum):
            loss = loss_of(model, make_batch(args.batch_size, args.device)) / args.grad_accum
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: loss {loss.item():.17g}", flush=True)


if __name__ == "__main__":
    main()
