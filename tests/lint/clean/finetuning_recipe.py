"""A fine-tuning recipe that sums losses over tokens and scales the gradients once, by the tokens of the whole window."""

import torch
import torch.distributed as dist


def scale_gradients(model, factor):
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad *= factor


class Recipe:
    def __init__(self, config, model, loader, loss_fn):
        self.model, self.loader, self.loss_fn = model, loader, loss_fn
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr)
        self.lr_scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=config.steps)
        self.accumulation = config.gradient_accumulation_steps
        self.epochs = config.epochs
        self.device = torch.device("cuda")
        self.global_step = 0

    def loss_step(self, batch):
        labels = batch.pop("labels")
        logits = self.model(**batch)
        loss = self.loss_fn(logits.flatten(0, 1), labels.flatten())
        del logits
        return loss

    def train(self):
        running_loss, num_tokens = 0.0, 0
        self.optimizer.zero_grad()
        for epoch in range(self.epochs):
            self.model.train()
            for idx, batch in enumerate(self.loader):
                batch = {key: value.to(self.device) for key, value in batch.items()}
                current = (batch["labels"] != -100).sum()
                num_tokens += current
                loss = self.loss_step(batch) * current
                running_loss += loss.detach()
                loss.backward()
                if (idx + 1) % self.accumulation == 0 or (idx + 1) == len(self.loader):
                    if dist.is_initialized():
                        dist.all_reduce(num_tokens)
                    scale_gradients(self.model, 1 / num_tokens)
                    norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                    self.optimizer.step()
                    self.optimizer.zero_grad(set_to_none=True)
                    self.lr_scheduler.step()
                    self.global_step += 1
                    print(self.global_step, (running_loss / num_tokens).item(), norm.item())
                    running_loss, num_tokens = 0.0, 0
            self.validate(epoch)

    def validate(self, epoch):
        self.model.eval()
        total, tokens = torch.tensor(0.0, device=self.device), torch.tensor(0, device=self.device)
        with torch.no_grad():
            for batch in self.loader.validation():
                batch = {key: value.to(self.device) for key, value in batch.items()}
                current = (batch["labels"] != -100).sum()
                total += self.loss_step(batch) * current
                tokens += current
        print(epoch, (total / tokens).item())
