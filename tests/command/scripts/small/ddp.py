"""Trains under DistributedDataParallel, for `torchrun`."""

import argparse
import os

import torch
import torch.distributed as dist
from tiny import build_model, loss_of, make_batch
from torch.nn.parallel import DistributedDataParallel


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--backend", default="gloo")
    args = parser.parse_args()

    dist.init_process_group(args.backend)
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    model = DistributedDataParallel(build_model().cuda(), device_ids=[local_rank])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(100_000):
        loss_of(model, make_batch(args.batch_size)).backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
