"""A trainer over FSDP2 that counts valid tokens of all ranks before the micro-batches of a step run."""

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard


def cross_entropy_sum(logits, labels):
    return torch.nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), labels.flatten(0, 1), reduction="sum", ignore_index=-100
    )


class Trainer:
    def __init__(self, config, model, loader):
        self.config = config
        self.device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count())
        for block in model.layers:
            fully_shard(block)
        self.model = fully_shard(model).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=config.lr, fused=True)
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: min(1.0, step / 100))
        self.loader = loader
        self.accumulation = config.global_batch_size // (config.local_batch_size * dist.get_world_size())
        self.step = 0

    def forward_backward(self, inputs, labels, valid_tokens):
        logits = self.model(inputs)
        loss = cross_entropy_sum(logits, labels) / valid_tokens
        del logits
        loss.backward()
        return loss

    def train_step(self, batches):
        self.optimizer.zero_grad()
        microbatches, count = [], torch.tensor(0, device=self.device)
        for _ in range(self.accumulation):
            inputs, labels = next(batches)
            count += (labels != -100).sum().to(self.device)
            microbatches.append((inputs, labels))
        dist.all_reduce(count)
        losses = []
        for inputs, labels in microbatches:
            loss = self.forward_backward(inputs.to(self.device), labels.to(self.device), count)
            losses.append(loss.detach())
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.max_norm, foreach=True)
        self.optimizer.step()
        self.lr_scheduler.step()
        total = torch.sum(torch.stack(losses))
        if self.step % self.config.log_freq == 0:
            dist.all_reduce(total)
            print(self.step, total.item())

    def train(self):
        batches = iter(self.loader)
        self.model.train()
        while self.step < self.config.steps:
            self.step += 1
            try:
                self.train_step(batches)
            except StopIteration:
                break
            if self.step % self.config.validate_every == 0:
                self.validate()

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        sums = []
        for inputs, labels in self.loader.validation():
            sums.append(cross_entropy_sum(self.model(inputs.to(self.device)), labels.to(self.device)))
        print(torch.stack(sums).sum().item())
        self.model.train()
