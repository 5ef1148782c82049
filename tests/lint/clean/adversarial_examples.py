"""Evaluation that needs gradients: attacks, saliency, adaptation at test time, a picture that is optimised."""

import torch
import torch.nn.functional as F


def pgd(model, x, y, eps, alpha, steps):
    adversarial = x.clone().detach() + torch.empty_like(x).uniform_(-eps, eps)
    for _ in range(steps):
        adversarial.requires_grad_(True)
        loss = F.cross_entropy(model(adversarial), y)
        (gradient,) = torch.autograd.grad(loss, adversarial)
        adversarial = adversarial.detach() + alpha * gradient.sign()
        adversarial = (x + (adversarial - x).clamp(-eps, eps)).clamp(0, 1)
    return adversarial.detach()


def robust_accuracy(model, loader, device):
    model.eval()
    right = total = 0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        x = pgd(model, x, y, 8 / 255, 2 / 255, 10)
        with torch.no_grad():
            right += (model(x).argmax(1) == y).sum().item()
        total += len(y)
    return right / total


def saliency(model, images):
    model.eval()
    maps = []
    for image in images:
        image = image.unsqueeze(0).requires_grad_()
        scores = model(image)
        scores[0, scores.argmax()].backward()
        maps.append(image.grad.abs().amax(1).cpu())
        model.zero_grad(set_to_none=True)
    return maps


def paint(features, content, style_grams, steps):
    image = content.clone().requires_grad_(True)
    optimizer = torch.optim.LBFGS([image])
    features.eval()
    for step in range(steps):

        def closure():
            optimizer.zero_grad()
            maps = features(image)
            style = sum(F.mse_loss(m.flatten(2) @ m.flatten(2).mT, g) for m, g in zip(maps, style_grams))
            loss = style + F.mse_loss(image, content)
            loss.backward()
            return loss

        optimizer.step(closure)
    return image.detach()
