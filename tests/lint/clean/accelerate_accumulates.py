"""Accelerate decides when a step is made: what stands in every micro-step is skipped until the boundary."""

import torch
from accelerate import Accelerator
from tqdm.auto import tqdm


def evaluate(model, loader, accelerator, metric):
    model.eval()
    losses = []
    for batch in loader:
        with torch.no_grad():
            outputs = model(**batch)
        losses.append(accelerator.gather_for_metrics(outputs.loss.repeat(len(batch["labels"]))).cpu())
        predictions = outputs.logits.argmax(dim=-1)
        predictions, references = accelerator.gather_for_metrics((predictions, batch["labels"]))
        metric.add_batch(predictions=predictions, references=references)
    return torch.cat(losses).mean().item(), metric.compute()


def main(args, model, train_loader, eval_loader, metric):
    accelerator = Accelerator(gradient_accumulation_steps=args.gradient_accumulation_steps)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=args.max_train_steps)
    model, optimizer, train_loader, eval_loader, scheduler = accelerator.prepare(
        model, optimizer, train_loader, eval_loader, scheduler
    )
    bar = tqdm(range(args.max_train_steps), disable=not accelerator.is_local_main_process)
    completed = 0
    for epoch in range(args.num_train_epochs):
        model.train()
        total_loss = 0
        for step, batch in enumerate(train_loader):
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                total_loss += loss.detach().float()
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), args.max_grad_norm)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                bar.update(1)
                completed += 1
                if completed % args.checkpointing_steps == 0:
                    accelerator.save_state(f"step_{completed}")
            if completed >= args.max_train_steps:
                break
        loss, scores = evaluate(model, eval_loader, accelerator, metric)
        accelerator.print(epoch, loss, scores, total_loss.item() / len(train_loader))
    accelerator.wait_for_everyone()
    accelerator.unwrap_model(model).save_pretrained(args.output_dir)
