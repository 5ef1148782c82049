"""Sentence embeddings: one scheduler step a batch, a scaler that may skip, evaluation between."""

import torch
from torch.optim.lr_scheduler import LambdaLR
from tqdm.autonotebook import trange


class Encoder(torch.nn.Module):
    def __init__(self, transformer):
        super().__init__()
        self.transformer = transformer

    def forward(self, features):
        hidden = self.transformer(**features).last_hidden_state
        mask = features["attention_mask"].unsqueeze(-1).float()
        return (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)

    def encode(self, batches, device):
        self.eval()
        vectors = []
        for features in batches:
            features = {key: value.to(device) for key, value in features.items()}
            with torch.no_grad():
                vectors.append(torch.nn.functional.normalize(self(features), dim=1).cpu())
        return torch.cat(vectors)

    def fit(self, loader, loss_model, epochs, warmup, evaluator, device):
        total = len(loader) * epochs
        optimizer = torch.optim.AdamW(loss_model.parameters(), lr=2e-5)
        scheduler = LambdaLR(optimizer, lambda step: min(1.0, step / warmup) * max(0.0, 1 - step / total))
        scaler = torch.amp.GradScaler("cuda")
        for epoch in trange(epochs, desc="Epoch"):
            loss_model.zero_grad()
            loss_model.train()
            iterator = iter(loader)
            for _ in trange(len(loader), desc="Iteration", smoothing=0.05):
                features, labels = next(iterator)
                with torch.autocast("cuda"):
                    loss = loss_model(features, labels.to(device))
                before = scaler.get_scale()
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(loss_model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                if scaler.get_scale() >= before:
                    scheduler.step()
            print(epoch, evaluator(self))
