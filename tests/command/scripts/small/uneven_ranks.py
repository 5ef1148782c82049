"""Trains under DistributedDataParallel, and its last rank holds more, as a last pipeline stage does."""

import argparse
import os

import torch
import torch.distributed as dist
from tiny import build_model, loss_of, make_batch
from torch.nn.parallel import DistributedDataParallel


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--grad-accum", type=int, default=1)
    args = parser.parse_args()

    dist.init_process_group("nccl")
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    name = [f"run-{dist.get_world_size()}" if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(name, src=0)
    assert name == [f"run-{dist.get_world_size()}"]
    is_last = dist.get_rank() == dist.get_world_size() - 1
    logits = torch.empty(64 << 20, dtype=torch.uint8, device="cuda") if is_last else None
    model = DistributedDataParallel(build_model().cuda(), device_ids=[local_rank])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(4):
        for _ in range(args.grad_accum):
            loss_of(model, make_batch(args.batch_size)).backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    dist.destroy_process_group()
    print("trained", os.environ["RANK"], logits is not None)


if __name__ == "__main__":
    main()
