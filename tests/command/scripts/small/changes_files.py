"""Makes, renames and deletes files and directories in its working directory."""

import argparse
import os
import shutil
import tempfile
from pathlib import Path

import torch
from tiny import build_model, loss_of, make_batch


def prepare():
    if Path("cache").exists():
        shutil.rmtree("cache")
    Path("cache/tokens").mkdir(parents=True)
    Path("cache/tokens/part-0.bin").write_bytes(bytes(1000))
    Path("stale.txt").unlink(missing_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=".", delete=False) as file:
        file.write("{}")
    os.replace(file.name, "config.json")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()

    prepare()
    model = build_model().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(100_000):
        loss_of(model, make_batch(args.batch_size)).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
