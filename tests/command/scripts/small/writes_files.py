"""Writes a log line and a checkpoint at each step, and more in `finally`, in a signal handler and at exit."""

import argparse
import atexit
import signal
import sys
from pathlib import Path

import torch
from tiny import build_model, loss_of, make_batch


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--output", type=Path, default=Path("run"))
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()

    args.output.mkdir(exist_ok=True)
    atexit.register((args.output / "atexit.txt").write_text, "the process ends\n")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    model = build_model().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    try:
        for step in range(args.steps):
            loss_of(model, make_batch(args.batch_size)).backward()
            optimizer.step()
            optimizer.zero_grad()
            with (args.output / "log.txt").open("a") as log:
                log.write(f"step {step}\n")
            torch.save(optimizer.param_groups[0]["lr"], args.output / "checkpoint.tmp")
            (args.output / "checkpoint.tmp").rename(args.output / "checkpoint.pt")
    except BaseException as error:
        (args.output / "error.txt").write_text(repr(error))
        raise
    finally:
        (args.output / "finally.txt").write_text("training is over\n")


if __name__ == "__main__":
    main()
