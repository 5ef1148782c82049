"""Two networks against each other: critics more often than the generator, a gradient penalty, one shared graph."""

import torch


def gradient_penalty(critic, real, fake):
    weight = torch.rand(real.size(0), 1, 1, 1, device=real.device)
    mixed = (weight * real + (1 - weight) * fake).requires_grad_(True)
    score = critic(mixed)
    (gradient,) = torch.autograd.grad(score.sum(), mixed, create_graph=True)
    return ((gradient.flatten(1).norm(2, dim=1) - 1) ** 2).mean()


def train(generator, critic, loader, device, epochs, n_critic=5):
    opt_g = torch.optim.Adam(generator.parameters(), lr=1e-4, betas=(0.0, 0.9))
    opt_d = torch.optim.Adam(critic.parameters(), lr=1e-4, betas=(0.0, 0.9))
    fixed = torch.randn(64, 100, 1, 1, device=device)
    history = {"g": [], "d": []}
    for epoch in range(epochs):
        for i, (real, _) in enumerate(loader):
            real = real.to(device)
            noise = torch.randn(len(real), 100, 1, 1, device=device)
            fake = generator(noise)
            opt_d.zero_grad()
            loss_d = critic(fake.detach()).mean() - critic(real).mean()
            loss_d = loss_d + 10 * gradient_penalty(critic, real, fake.detach())
            loss_d.backward()
            opt_d.step()
            history["d"].append(loss_d.item())
            if i % n_critic == 0:
                opt_g.zero_grad()
                loss_g = -critic(fake).mean()
                loss_g.backward()
                opt_g.step()
                history["g"].append(loss_g.item())
        with torch.no_grad():
            samples = generator(fixed).detach().cpu()
        torch.save(samples, f"samples-{epoch}.pt")
    return history


def two_losses_on_one_graph(encoder, heads, loader, optimizer):
    for batch in loader:
        optimizer.zero_grad()
        hidden = encoder(batch)
        heads[0](hidden).mean().backward(retain_graph=True)
        heads[1](hidden).mean().backward()
        optimizer.step()
