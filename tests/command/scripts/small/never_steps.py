"""Runs forward and backward a few times, or only forward, and no optimizer."""

import argparse

from tiny import build_model, loss_of, make_batch


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--forward-only", action="store_true")
    args = parser.parse_args()

    model = build_model().cuda()
    for _ in range(5):
        loss = loss_of(model, make_batch(args.batch_size))
        if not args.forward_only:
            loss.backward()
    print("done", flush=True)


if __name__ == "__main__":
    main()
