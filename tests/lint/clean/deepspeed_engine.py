"""A DeepSpeed engine divides the loss, accumulates, clips, steps and zeroes by itself."""

import deepspeed
import torch


def main(args, model, dataset, eval_loader):
    engine, optimizer, loader, scheduler = deepspeed.initialize(
        args=args, model=model, model_parameters=model.parameters(), training_data=dataset
    )
    step = 0
    for epoch in range(args.epochs):
        engine.train()
        for batch in loader:
            batch = {key: value.to(engine.device) for key, value in batch.items()}
            loss = engine(**batch).loss
            engine.backward(loss)
            engine.step()
            if engine.is_gradient_accumulation_boundary():
                step += 1
                if step % 10 == 0 and engine.global_rank == 0:
                    print(epoch, step, loss.item(), scheduler.get_last_lr()[0])
        perplexity = evaluate(engine, eval_loader)
        print(f"perplexity {perplexity:.2f}")
        engine.save_checkpoint(args.output, tag=f"epoch-{epoch}")


def evaluate(engine, loader):
    engine.eval()
    losses = 0.0
    for step, batch in enumerate(loader):
        batch = {key: value.to(engine.device) for key, value in batch.items()}
        with torch.no_grad():
            outputs = engine(**batch)
        losses += outputs.loss.float()
    losses = losses / (step + 1)
    try:
        perplexity = torch.exp(losses).item()
    except OverflowError:
        perplexity = float("inf")
    return perplexity
