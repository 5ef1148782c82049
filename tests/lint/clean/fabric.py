"""Fabric: the loop is the user's, devices and precision are not."""

import lightning as L
import torch
import torch.nn.functional as F


@torch.no_grad()
def validate(fabric, model, loader, max_iters):
    model.eval()
    losses = torch.zeros(max_iters, device=fabric.device)
    for k, batch in enumerate(loader):
        if k >= max_iters:
            break
        logits = model(batch[:, :-1])
        losses[k] = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
    model.train()
    return fabric.all_reduce(losses.mean())


def fit(model, train_loader, val_loader, args):
    fabric = L.Fabric(devices=args.devices, strategy="fsdp", precision="bf16-true")
    fabric.launch()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, fused=True)
    model, optimizer = fabric.setup(model, optimizer)
    train_loader, val_loader = fabric.setup_dataloaders(train_loader, val_loader)
    accumulation = args.global_batch_size // (fabric.world_size * args.micro_batch_size)
    state = {"iter": 0, "step": 0}
    running = torch.zeros((), device=fabric.device)
    for batch in train_loader:
        if state["step"] >= args.max_steps:
            break
        state["iter"] += 1
        is_accumulating = state["iter"] % accumulation != 0
        with fabric.no_backward_sync(model, enabled=is_accumulating):
            logits = model(batch[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
            fabric.backward(loss / accumulation)
        running += loss.detach()
        if not is_accumulating:
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()
            state["step"] += 1
            if state["step"] % args.log_every == 0:
                fabric.print(state["step"], running.item() / (accumulation * args.log_every))
                running.zero_()
        if val_loader is not None and not is_accumulating and state["step"] % args.eval_every == 0:
            fabric.print(validate(fabric, model, val_loader, 100).item())
    fabric.save("last.ckpt", {"model": model})
