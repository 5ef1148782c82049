"""Takes one step and then sleeps for ever."""

import argparse
import time

import torch
from tiny import build_model, loss_of, make_batch


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()

    model = build_model().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_of(model, make_batch(args.batch_size)).backward()
    optimizer.step()
    print("one step done", flush=True)
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main()
