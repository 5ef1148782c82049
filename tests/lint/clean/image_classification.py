"""Image classification as the large training scripts have it: accumulation with a shorter last window, EMA, meters."""

import time
from contextlib import suppress

import torch
from torch.nn.parallel import DistributedDataParallel


class AverageMeter:
    def __init__(self):
        self.sum, self.count = 0.0, 0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n

    @property
    def avg(self):
        return self.sum / max(1, self.count)


def train_one_epoch(epoch, model, loader, optimizer, loss_fn, args, lr_scheduler, scaler, ema=None):
    autocast = torch.autocast("cuda") if args.amp else suppress()
    has_no_sync = isinstance(model, DistributedDataParallel)
    losses = AverageMeter()
    model.train()
    accum_steps = args.grad_accum_steps
    last_accum_steps = len(loader) % accum_steps
    updates_per_epoch = (len(loader) + accum_steps - 1) // accum_steps
    num_updates = epoch * updates_per_epoch
    last_batch_idx = len(loader) - 1
    last_batch_idx_to_accum = len(loader) - last_accum_steps
    optimizer.zero_grad()
    update_sample_count = 0
    for batch_idx, (images, target) in enumerate(loader):
        last_batch = batch_idx == last_batch_idx
        need_update = last_batch or (batch_idx + 1) % accum_steps == 0
        if batch_idx >= last_batch_idx_to_accum:
            accum_steps = last_accum_steps
        images, target = images.cuda(non_blocking=True), target.cuda(non_blocking=True)

        def _forward():
            with autocast:
                loss = loss_fn(model(images), target)
            if accum_steps > 1:
                loss /= accum_steps
            return loss

        def _backward(loss):
            scaler.scale(loss).backward()
            if need_update:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad)
                scaler.step(optimizer)
                scaler.update()

        if has_no_sync and not need_update:
            with model.no_sync():
                loss = _forward()
                _backward(loss)
        else:
            loss = _forward()
            _backward(loss)
        losses.update(loss.item() * accum_steps, images.size(0))
        update_sample_count += images.size(0)
        if not need_update:
            continue
        num_updates += 1
        optimizer.zero_grad()
        if ema is not None:
            ema.update(model, step=num_updates)
        lr_scheduler.step_update(num_updates=num_updates)
        update_sample_count = 0
    return {"loss": losses.avg}


def validate(model, loader, loss_fn, device):
    losses, top1 = AverageMeter(), AverageMeter()
    started = time.time()
    model.eval()
    with torch.inference_mode():
        for batch_idx, (images, target) in enumerate(loader):
            images, target = images.to(device), target.to(device)
            output = model(images)
            if isinstance(output, (tuple, list)):
                output = output[0]
            loss = loss_fn(output, target)
            hits = (output.argmax(dim=1) == target).float().mean()
            losses.update(loss.item(), images.size(0))
            top1.update(hits.item(), output.size(0))
            if batch_idx % 50 == 0:
                print(f"{batch_idx}/{len(loader)} {time.time() - started:.1f}s {top1.avg:.3f}")
    return {"loss": losses.avg, "top1": top1.avg}
