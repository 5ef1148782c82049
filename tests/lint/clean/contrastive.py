"""Contrastive training: features of all chunks in one loss, a queue of old keys, a momentum encoder, cached gradients."""

import torch
import torch.nn.functional as F


class Momentum:
    def __init__(self, query, key, queue, m=0.999, t=0.07):
        self.query, self.key, self.queue, self.m, self.t = query, key, queue, m, t

    @torch.no_grad()
    def follow(self):
        for q, k in zip(self.query.parameters(), self.key.parameters()):
            k.mul_(self.m).add_(q, alpha=1 - self.m)

    def train_epoch(self, loader, optimizer):
        losses = []
        for first, second in loader:
            q = F.normalize(self.query(first), dim=1)
            with torch.no_grad():
                self.follow()
                k = F.normalize(self.key(second), dim=1)
            logits = torch.cat([(q * k).sum(1, keepdim=True), q @ self.queue.T], dim=1) / self.t
            loss = F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long, device=q.device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            self.queue = torch.cat([k.detach(), self.queue])[: len(self.queue)]
            losses.append(loss.item())
        return sum(losses) / len(losses)


def large_batch_by_chunks(model, loader, optimizer, scale, chunk):
    """Features without a graph first, then each chunk again with one, against all."""
    for images, texts in loader:
        optimizer.zero_grad()
        image_parts, text_parts = images.split(chunk), texts.split(chunk)
        with torch.no_grad():
            kept_images = [model.image(part) for part in image_parts]
            kept_texts = [model.text(part) for part in text_parts]
        for i, (image, text) in enumerate(zip(image_parts, text_parts)):
            all_images = torch.cat([*kept_images[:i], model.image(image), *kept_images[i + 1 :]])
            all_texts = torch.cat([*kept_texts[:i], model.text(text), *kept_texts[i + 1 :]])
            logits = scale * all_images @ all_texts.T
            labels = torch.arange(len(logits), device=logits.device)
            loss = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2
            loss.backward()
        optimizer.step()


def retrieval_scores(model, loader, device):
    model.eval()
    images, texts = [], []
    with torch.no_grad():
        for image, text in loader:
            images.append(model.image(image.to(device)).cpu())
            texts.append(model.text(text.to(device)).cpu())
    return torch.cat(images) @ torch.cat(texts).T
