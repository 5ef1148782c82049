"""Train GPT-2 124M from scratch with Accelerate.

accelerate launch accelerated.py --batch_size 8 --gradient_accumulation_steps 4
"""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from synthetic_tokens import SyntheticTokens
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, get_linear_schedule_with_warmup


def training_function(args):
    accelerator = Accelerator(
        mixed_precision=args.mixed_precision, gradient_accumulation_steps=args.gradient_accumulation_steps
    )
    set_seed(args.seed)

    train_dataloader = DataLoader(SyntheticTokens(), shuffle=True, batch_size=args.batch_size, drop_last=True)
    model = GPT2LMHeadModel(GPT2Config())
    optimizer = torch.optim.AdamW(params=model.parameters(), lr=args.learning_rate)
    lr_scheduler = get_linear_schedule_with_warmup(
        optimizer=optimizer, num_warmup_steps=100, num_training_steps=args.max_train_steps
    )

    model, optimizer, train_dataloader, lr_scheduler = accelerator.prepare(
        model, optimizer, train_dataloader, lr_scheduler
    )

    completed_steps = 0
    model.train()
    while completed_steps < args.max_train_steps:
        for batch in train_dataloader:
            with accelerator.accumulate(model):
                outputs = model(**batch)
                loss = outputs.loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                lr_scheduler.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                completed_steps += 1
                if completed_steps % args.logging_steps == 0:
                    accelerator.print(f"step {completed_steps}: loss {loss.item():.4f}")
            if completed_steps >= args.max_train_steps:
                break

    accelerator.wait_for_everyone()
    accelerator.save_model(model, args.output_dir)
    accelerator.end_training()


def main():
    parser = argparse.ArgumentParser(description="Simple example of a training script.")
    parser.add_argument("--mixed_precision", default="bf16", choices=["no", "fp16", "bf16", "fp8"])
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    parser.add_argument("--max_train_steps", type=int, default=1000)
    parser.add_argument("--learning_rate", type=float, default=6e-4)
    parser.add_argument("--logging_steps", type=int, default=10)
    parser.add_argument("--output_dir", default="out")
    parser.add_argument("--seed", type=int, default=42)
    training_function(parser.parse_args())


if __name__ == "__main__":
    main()
