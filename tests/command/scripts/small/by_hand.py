"""Trains with a gradient descent of its own, and no optimizer of torch."""

import argparse

import torch
from tiny import build_model, loss_of, make_batch


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()

    model = build_model().cuda()
    while True:
        loss_of(model, make_batch(args.batch_size)).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 1e-3 * parameter.grad
                parameter.grad = None


if __name__ == "__main__":
    main()
