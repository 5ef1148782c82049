"""Runs forward and backward a few times, and no optimizer."""

import argparse

from tiny import build_model, loss_of, make_batch


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()

    model = build_model().cuda()
    for _ in range(5):
        loss_of(model, make_batch(args.batch_size)).backward()
    print("done", flush=True)


if __name__ == "__main__":
    main()
