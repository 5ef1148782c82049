"""A GAN: in each iteration the discriminator takes a step, and then the generator."""

import argparse

import torch
from tiny import build_model, make_batch
from torch import nn

loss_function = nn.BCEWithLogitsLoss()


def judged(discriminator, batch, real):
    logits = discriminator(batch).mean(dim=(1, 2))
    return loss_function(logits, torch.full_like(logits, float(real)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()

    generator, discriminator = build_model().cuda(), build_model().cuda()
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-4)
    discriminator_optimizer = torch.optim.Adam(discriminator.parameters(), lr=2e-4)
    for _ in range(100_000):
        fake = generator(make_batch(args.batch_size))

        discriminator_optimizer.zero_grad()
        real_loss = judged(discriminator, make_batch(args.batch_size), real=True)
        fake_loss = judged(discriminator, fake.detach(), real=False)
        (real_loss + fake_loss).backward()
        discriminator_optimizer.step()

        generator_optimizer.zero_grad()
        judged(discriminator, fake, real=True).backward()
        generator_optimizer.step()


if __name__ == "__main__":
    main()
