"""Train GPT-2 124M from scratch with Lightning Fabric.

python fabric_gpt2.py --batch-size 8 --accumulate 4
"""

import argparse

import torch
from lightning.fabric import Fabric
from synthetic_tokens import SyntheticTokens
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--max-steps", type=int, default=1000)
    args = parser.parse_args()

    fabric = Fabric(accelerator="auto", devices=1, precision="bf16-mixed")
    fabric.launch()
    fabric.seed_everything(42)

    with fabric.init_module():
        model = GPT2LMHeadModel(GPT2Config())
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4)
    model, optimizer = fabric.setup(model, optimizer)
    dataloader = fabric.setup_dataloaders(DataLoader(SyntheticTokens(), batch_size=args.batch_size, shuffle=True))

    model.train()
    steps = 0
    while steps < args.max_steps:
        for iteration, batch in enumerate(dataloader, start=1):
            is_accumulating = iteration % args.accumulate != 0

            with fabric.no_backward_sync(model, enabled=is_accumulating):
                output = model(**batch)
                fabric.backward(output.loss / args.accumulate)

            if not is_accumulating:
                fabric.clip_gradients(model, optimizer, max_norm=1.0)
                optimizer.step()
                optimizer.zero_grad()
                steps += 1
                fabric.print(f"step {steps}: loss {output.loss.item():.4f}")
                if steps == args.max_steps:
                    break

    fabric.save("checkpoint.ckpt", {"model": model, "optimizer": optimizer, "steps": steps})


if __name__ == "__main__":
    main()
