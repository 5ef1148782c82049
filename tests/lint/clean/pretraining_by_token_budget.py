"""As small pretraining scripts write it: a fixed token budget a step, an inner loop over micro-steps, two optimizers."""

import math
import os
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist


def evaluate_bits_per_byte(model, batches, steps, token_bytes):
    total_nats = torch.tensor(0.0, device=model.device)
    total_bytes = torch.tensor(0, device=model.device)
    iterator = iter(batches)
    with torch.no_grad():
        for _ in range(steps):
            inputs, targets = next(iterator)
            losses = model(inputs, targets, reduction="none").view(-1)
            sizes = token_bytes[targets.view(-1)]
            total_nats += (losses * (sizes > 0)).sum()
            total_bytes += sizes.sum()
    if dist.is_initialized():
        dist.all_reduce(total_nats)
        dist.all_reduce(total_bytes)
    return total_nats.item() / (math.log(2) * total_bytes.item())


def main(model, train_loader, build_val_loader, token_bytes, settings):
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    tokens_per_pass = settings.device_batch_size * settings.sequence_length * world_size
    assert settings.total_batch_size % tokens_per_pass == 0
    grad_accum_steps = settings.total_batch_size // tokens_per_pass
    original = model
    model = torch.compile(model, dynamic=False)
    adamw, muon = original.make_optimizers(settings)
    optimizers = [adamw, muon]
    autocast = torch.autocast("cuda", dtype=torch.bfloat16) if torch.cuda.is_available() else nullcontext()
    smooth = 0.0
    x, y = next(train_loader)
    for step in range(settings.num_iterations + 1):
        last = step == settings.num_iterations
        if last or step % settings.eval_every == 0:
            model.eval()
            with autocast:
                bits = evaluate_bits_per_byte(model, build_val_loader(), settings.eval_steps, token_bytes)
            print(f"step {step:05d} | bits a byte {bits:.4f}")
            model.train()
        if last:
            break
        started = time.time()
        for _ in range(grad_accum_steps):
            with autocast:
                loss = model(x, y)
            train_loss = loss.detach()
            loss = loss / grad_accum_steps
            loss.backward()
            x, y = next(train_loader)
        norm = torch.nn.utils.clip_grad_norm_(original.parameters(), settings.grad_clip)
        factor = min(1.0, (settings.num_iterations - step) / settings.warm_down)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * factor
        for optimizer in optimizers:
            optimizer.step()
        model.zero_grad(set_to_none=True)
        smooth = 0.9 * smooth + 0.1 * train_loss.item()
        if step % 100 == 0:
            print(f"{step} {smooth:.5f} {norm:.3f} {time.time() - started:.2f}s")
