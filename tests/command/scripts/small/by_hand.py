"""Trains with a gradient descent of its own, and no optimizer of torch."""

import argparse
import itertools
import sys

import torch
from tiny import build_model, loss_of, make_batch


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--steps", type=int, help="for ever where it is not given")
    parser.add_argument("--status", type=int, default=0, help="exit code")
    args = parser.parse_args()

    model = build_model().cuda()
    for _ in itertools.islice(itertools.count(), args.steps):
        loss_of(model, make_batch(args.batch_size)).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 1e-3 * parameter.grad
                parameter.grad = None
    sys.exit(args.status)


if __name__ == "__main__":
    main()
