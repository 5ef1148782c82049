"""A pretraining loop over DDP that switches gradient synchronisation by its flag, with a scaler."""

import torch
from torch.nn.parallel import DistributedDataParallel as DDP


@torch.no_grad()
def estimate_loss(model, get_batch, eval_iters, context):
    means = {}
    model.eval()
    for split in ("train", "val"):
        losses = torch.zeros(eval_iters)
        for k in range(eval_iters):
            x, y = get_batch(split)
            with context:
                _, loss = model(x, y)
            losses[k] = loss.item()
        means[split] = losses.mean()
    model.train()
    return means


def train(model, get_batch, optimizer, config, ddp, local_rank):
    context = torch.amp.autocast("cuda", dtype=torch.float16)
    scaler = torch.amp.GradScaler("cuda", enabled=config.dtype == "float16")
    raw_model = model
    if ddp:
        model = DDP(model, device_ids=[local_rank])
    best = float("inf")
    x, y = get_batch("train")
    iter_num = 0
    while True:
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate * min(1.0, iter_num / config.warmup_iters)
        if iter_num % config.eval_interval == 0 and local_rank == 0:
            losses = estimate_loss(model, get_batch, config.eval_iters, context)
            if losses["val"] < best:
                best = losses["val"]
                if iter_num > 0:
                    torch.save({"model": raw_model.state_dict(), "optimizer": optimizer.state_dict()}, config.out)
        for micro_step in range(config.gradient_accumulation_steps):
            if ddp:
                model.require_backward_grad_sync = micro_step == config.gradient_accumulation_steps - 1
            with context:
                logits, loss = model(x, y)
                loss = loss / config.gradient_accumulation_steps
            x, y = get_batch("train")
            scaler.scale(loss).backward()
        if config.grad_clip != 0.0:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.grad_clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        if iter_num % config.log_interval == 0 and local_rank == 0:
            print(iter_num, loss.item() * config.gradient_accumulation_steps)
        iter_num += 1
        if iter_num > config.max_iters:
            break
