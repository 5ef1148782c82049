"""Train GPT-2 124M from scratch in a plain PyTorch loop.

python plain.py --batch-size 8 --grad-accum 4
"""

import argparse

import torch
from synthetic_tokens import SyntheticTokens
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=8, help="samples in one forward pass")
    parser.add_argument("--grad-accum", type=int, default=1, help="forward passes per optimizer step")
    parser.add_argument("--max-steps", type=int, default=1000)
    parser.add_argument("--learning-rate", type=float, default=6e-4)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--log-interval", type=int, default=10)
    parser.add_argument("--seed", type=int, default=42)
    return parser.parse_args()


def batches(loader):
    while True:
        yield from loader


def main():
    args = parse_args()
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    model = GPT2LMHeadModel(GPT2Config()).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, weight_decay=args.weight_decay)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.max_steps)
    loader = batches(DataLoader(SyntheticTokens(), batch_size=args.batch_size, shuffle=True, drop_last=True))

    model.train()
    for step in range(args.max_steps):
        for _ in range(args.grad_accum):
            batch = {name: tensor.to(device) for name, tensor in next(loader).items()}
            with torch.autocast(device.type, dtype=torch.bfloat16):
                outputs = model(**batch)
                loss = outputs.loss / args.grad_accum
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if step % args.log_interval == 0:
            print(f"step {step}: loss {loss.item() * args.grad_accum:.4f}")

    torch.save(model.state_dict(), "gpt2.pt")


if __name__ == "__main__":
    main()
