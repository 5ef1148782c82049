"""Detection as in reference scripts: a dictionary of losses, summed before one backward, reduced for the log."""

import math
import sys

import torch
import torch.distributed as dist


def reduce_dict(values):
    if not dist.is_initialized():
        return values
    with torch.no_grad():
        names = sorted(values)
        stacked = torch.stack([values[name] for name in names])
        dist.all_reduce(stacked)
        stacked /= dist.get_world_size()
        return dict(zip(names, stacked))


def train_one_epoch(model, optimizer, loader, device, epoch, logger, scaler=None):
    model.train()
    warmup = None
    if epoch == 0:
        iterations = min(1000, len(loader) - 1)
        warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1e-3, total_iters=iterations)
    for images, targets in logger.log_every(loader, 50):
        images = [image.to(device) for image in images]
        targets = [{k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in t.items()} for t in targets]
        with torch.autocast("cuda", enabled=scaler is not None):
            loss_dict = model(images, targets)
            losses = sum(loss for loss in loss_dict.values())
        reduced = reduce_dict(loss_dict)
        value = sum(loss for loss in reduced.values()).item()
        if not math.isfinite(value):
            print(f"loss is {value}, stopping")
            sys.exit(1)
        optimizer.zero_grad()
        if scaler is not None:
            scaler.scale(losses).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            losses.backward()
            optimizer.step()
        if warmup is not None:
            warmup.step()
        logger.update(loss=value, lr=optimizer.param_groups[0]["lr"])
    return logger


@torch.inference_mode()
def evaluate(model, loader, device, evaluator):
    cpu = torch.device("cpu")
    model.eval()
    for images, targets in loader:
        outputs = model([image.to(device) for image in images])
        outputs = [{k: v.to(cpu) for k, v in t.items()} for t in outputs]
        evaluator.update({target["image_id"]: output for target, output in zip(targets, outputs)})
    evaluator.accumulate()
    return evaluator


def main(args, model, train_loader, test_loader, logger, evaluator):
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=args.lr, momentum=0.9)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[16, 22])
    if args.resume:
        checkpoint = torch.load(args.resume, map_location="cpu", weights_only=True)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        schedule.load_state_dict(checkpoint["lr_scheduler"])
        args.start_epoch = checkpoint["epoch"] + 1
        del checkpoint
    for epoch in range(args.start_epoch, args.epochs):
        train_one_epoch(model, optimizer, train_loader, args.device, epoch, logger)
        schedule.step()
        evaluate(model, test_loader, args.device, evaluator)
