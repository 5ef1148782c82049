"""Workspaces of random convolutions as PyTorch takes them on the null GPU, against cuDNN asked by a program of C.

The program (`workspaces.c`) has neither PyTorch nor the null GPU in it. Each convolution, forward or one of its two
backwards, is run in PyTorch on five cards, of which each stands for its compute capability, and what the step allocates
besides its tensors is compared.

Then processes train convolutions of every kind, with data loader workers that are forked meanwhile, and must end
cleanly.

Usage: python tests/bench/workspaces.py [--count N] [--exits N]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from measuring import RESULTS, machine, save

from oomdoctor.engines.catalogue import find_card
from oomdoctor.engines.cudnn import COMMAND
from oomdoctor.engines.cudnn_library import card_properties, cudnn_variables, cudnn_version
from oomdoctor.engines.installed import compile_all, find_compiler, find_torch
from oomdoctor.engines.null_gpu.library import environment

CARDS = ("t4", "a100-sxm4-80gb", "rtx-3060-12gb", "rtx-4090", "h100-sxm-80gb")
SEED = 16
TYPES = {"float32": 0, "float16": 2, "bfloat16": 9}
WIDTHS, SIDES, KERNELS = (16, 32, 64, 96, 128, 256, 512), (7, 14, 28, 56), (1, 3, 5, 7)

IN_PYTORCH = """
import json, os, sys
import torch

def measured(kind, dtype, last, x, w, stride, pad):
    layout = torch.channels_last if last else torch.contiguous_format
    x, w = (torch.zeros(s, device="cuda", dtype=getattr(torch, dtype)).to(memory_format=layout) for s in (x, w))
    options = dict(bias=None, stride=[stride] * 2, padding=[pad] * 2, dilation=[1, 1], transposed=False,
                   output_padding=[0, 0], groups=1)
    mask = [kind == "d", kind == "w", False]
    y = torch.convolution(x, w, *options.values())
    options["bias_sizes"] = options.pop("bias")
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    if kind == "f":
        del options["bias_sizes"]
        made = torch.convolution(x, w, None, *options.values())
    else:
        made = torch.ops.aten.convolution_backward(y, x, w, output_mask=mask, **options)
    stats = torch.cuda.memory_stats()
    return stats["requested_bytes.all.peak"] - stats["requested_bytes.all.current"]

print(json.dumps([measured(*question) for question in json.load(sys.stdin)]), flush=True)
os._exit(0)
"""
ENDING = """
import torch
from torch import nn

class Rows(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, index): return torch.randn(3, 32, 32)

def main(layer, shape, dtype):
    layer = layer.to("cuda", dtype)
    x = torch.randn(shape, device="cuda", dtype=dtype)
    layer(x.to(memory_format=torch.channels_last) if x.dim() == 4 else x).float().mean().backward()

convnext = nn.Sequential(nn.Conv2d(3, 96, 4, 4), nn.Conv2d(96, 96, 7, padding=3, groups=96), nn.Conv2d(96, 384, 1))
main(convnext, (2, 3, 64, 64), torch.bfloat16)
main(nn.Conv2d(64, 64, 3, groups=4), (2, 64, 16, 16), torch.float32)
loader = torch.utils.data.DataLoader(Rows(), batch_size=2, num_workers=2)
stem = nn.Conv2d(3, 16, 3).cuda()
assert sum(len(stem(rows.cuda())) for rows in loader) == 8
main(nn.ConvTranspose2d(64, 32, 2, 2), (2, 64, 16, 16), torch.float32)
main(nn.Conv3d(8, 16, 3), (2, 8, 8, 16, 16), torch.float32)
main(nn.Conv2d(64, 64, 3, padding=1), (2, 64, 16, 16), torch.float16)
assert sum(len(stem(rows.cuda())) for rows in loader) == 8
print("ended")
"""


def questions(count: int) -> list[list[Any]]:
    """Random convolutions: kind, type, whether channels are last, input, weight, stride, padding."""
    draw, found = random.Random(SEED), []
    for _ in range(count):
        batch, inputs, outputs = draw.choice((4, 32)), draw.choice(WIDTHS), draw.choice(WIDTHS)
        side, kernel, stride = draw.choice(SIDES), draw.choice(KERNELS), draw.choice((1, 1, 2))
        x, w = [batch, inputs, side, side], [outputs, inputs, kernel, kernel]
        found.append([draw.choice("fdw"), draw.choice([*TYPES]), draw.choice((0, 1)), x, w, stride, kernel // 2])
    return found


def asked(program: Path, card: str, asked_for: list[list[Any]], settings: dict[str, Any]) -> list[int]:
    """The workspaces that the program of C names; -1 where cuDNN has no engine."""
    lines = [
        f"{kind} {TYPES[dtype]} {last} {'x'.join(map(str, x))} {'x'.join(map(str, w))} {stride} {pad}\n"
        for kind, dtype, last, x, w, stride, pad in asked_for
    ]
    command = [str(program), card_properties(find_card(card)), settings["library"], *settings["before"]]
    ended = subprocess.run(command, input="".join(lines), capture_output=True, text=True, check=True)
    return [int(line) for line in ended.stdout.split()]


def taken(env: dict[str, str], asked_for: list[list[Any]]) -> list[int]:
    """The bytes that PyTorch asks its allocator for on the null GPU, besides the tensors."""
    command = [sys.executable, "-W", "ignore", "-c", IN_PYTORCH]
    ended = subprocess.run(command, env=env, input=json.dumps(asked_for), capture_output=True, text=True, check=True)
    found: list[int] = json.loads(ended.stdout.splitlines()[-1])
    return found


def endings(env: dict[str, str], count: int) -> int:
    """How many of so many processes end cleanly."""
    command = [sys.executable, "-W", "ignore", "-c", ENDING]
    ended = [subprocess.run(command, env=env, capture_output=True, text=True, check=False) for _ in range(count)]
    return sum((one.returncode, one.stdout) == (0, "ended\n") for one in ended)


def main() -> None:
    """Run the bench and write its results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--exits", type=int, default=50)
    chosen = parser.parse_args()
    build = find_torch()
    assert build is not None
    settings = json.loads(cudnn_variables(build, os.environ, find_card(CARDS[0]))[COMMAND].rpartition("\n")[2])
    rows, asked_for = {}, questions(chosen.count)
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "workspaces"
        source = Path(__file__).with_suffix(".c")
        compile_all([[*find_compiler(os.environ), "-std=gnu11", "-O1", "-w", str(source), "-ldl", "-o", str(program)]])
        for card in CARDS:
            env = environment(find_card(card), build, os.environ)
            pairs = list(zip(asked_for, asked(program, card, asked_for, settings), taken(env, asked_for), strict=True))
            served = [pair for pair in pairs if pair[1] >= 0]
            other = [[*each, size, got] for each, size, got in served if size != got]
            rows[card] = {
                "convolutions": len(served),
                "without_an_engine": len(pairs) - len(served),
                "equal": len(served) - len(other),
                "other": other,
            }
            print(card, {**rows[card], "other": other[:5]}, flush=True)
    exits = endings(environment(find_card("rtx-3060-12gb"), build, os.environ), chosen.exits)
    print(f"{exits} of {chosen.exits} processes ended cleanly")
    versions = {"torch": build.version, "cudnn": cudnn_version(env)}
    save(RESULTS / "workspaces.json", {"machine": machine() | versions, "cards": rows, "exits": [exits, chosen.exits]})


if __name__ == "__main__":
    main()
