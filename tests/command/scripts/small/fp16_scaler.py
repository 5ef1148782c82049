"""Trains in fp16 with a gradient scaler; `--overflow` makes the first gradients infinite, so that steps are skipped."""

import argparse

import torch
from tiny import build_model, loss_of, make_batch


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--grad-accum", type=int, default=1)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--overflow", type=int, default=0)
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()

    model = build_model().to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(args.device)
    dtype = torch.float16 if args.device == "cuda" else torch.bfloat16
    for step in range(args.steps):
        for _ in range(args.grad_accum):
            with torch.autocast(args.device, dtype=dtype):
                loss = loss_of(model, make_batch(args.batch_size, args.device)) / args.grad_accum
            scaler.scale(loss * float("inf") if step < args.overflow else loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
