"""Peaks of torchtitan's own trainer as a lone rank, beside those that its authors published.

Rows are of `benchmarks/llama3_h100_202412_torchtitan.md` of https://github.com/pytorch/torchtitan, whose memory is the
most that was reserved; the trainer is that of its commit 9dec370, which whoever runs this checks out. Float8 needs
torchao, of its time `torchao==0.7.0`. The published runs were of PyTorch of 2024-12-23, between 2.6 and 2.7;
what others reserve may differ, so that rows are kept of each PyTorch that runs them.

Usage: python tests/bench/torchtitan_rows.py CHECKOUT [ROWS]
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from measuring import RESULTS, save_rows_of_torch

FILE: Final = RESULTS / "torchtitan.json"
START: Final = Path(__file__).with_name("torchtitan_start.py")
GPU: Final = "h100-nvl"
"""The catalogue's card with the memory of theirs."""
MOST_PERCENT: Final = 0.5
_COMPILE: Final = ("--training.compile",)
_FLOAT8: Final = (
    *("--training.compile", "--float8.enable_float8_linear", "--float8.enable_fsdp_float8_all_gather"),
    "--float8.precompute_float8_dynamic_scale_for_fsdp",
)
_FSDP: Final = ("8B", "selective", "--training.batch_size", "2")
_LONG: Final = ("8B", "full", "--training.batch_size", "1", *_FLOAT8, "--training.seq_len")
_CONTEXT: Final = "--experimental.context_parallel_degree"
_2D: Final = ("70B", "full", "--training.batch_size", "16", "--training.tensor_parallel_degree", "8")
ROWS: Final[dict[str, tuple[int, float, tuple[str, ...]]]] = {
    "8B, FSDP 8": (8, 82.4, _FSDP),
    "8B, FSDP 8, compile": (8, 77.0, (*_FSDP, *_COMPILE)),
    "8B, FSDP 8, compile, float8": (8, 76.8, (*_FSDP, *_FLOAT8)),
    "8B, FSDP 128": (128, 67.0, _FSDP),
    "8B, FSDP 128, compile": (128, 62.0, (*_FSDP, *_COMPILE)),
    "8B, FSDP 128, compile, float8": (128, 61.8, (*_FSDP, *_FLOAT8)),
    "8B, FSDP 8 and CP 1, 32,768 tokens, compile, float8": (8, 83.9, (*_LONG, "32768")),
    "8B, FSDP 4 and CP 2, 65,536 tokens, compile, float8": (8, 84.2, (*_LONG, "65536", _CONTEXT, "2")),
    "8B, FSDP 2 and CP 4, 131,072 tokens, compile, float8": (8, 84.0, (*_LONG, "131072", _CONTEXT, "4")),
    "8B, FSDP 1 and CP 8, 262,144 tokens, compile, float8": (8, 84.5, (*_LONG, "262144", _CONTEXT, "8")),
    "70B, FSDP 32 and TP 8, compile, float8": (256, 71.9, (*_2D, *_FLOAT8)),
}
"""Ranks, published GiB, and size, checkpointing and options."""
_ENVIRONMENT: Final = {"TORCHINDUCTOR_SIZE_ASSERTS": "0"}
"""Code compiled with tensor parallelism asserts strides of attention's gradients that PyTorch 2.15 does not have."""
CAUSES: Final = {
    "70B": "the versions: PyTorch 2.6.0 with torchao 0.7.0 reserves what was published",
    "CP": "not found; the published runs were of a PyTorch between 2.6 and 2.7",
}
"""Why a row whose name has this misses, where it does."""
_MEMORY: Final = re.compile(r"step: +(\d+) .*memory: +([\d.]+)GiB")


def command_of(checkout: str, name: str) -> list[str]:
    """Return the command that trains a row's first rank for three steps."""
    world, _, (size, checkpointing, *options) = ROWS[name]
    ours = ["run", "--no-history", "--world-size", str(world), "--rank", "0", "--gpu", GPU, "--"]
    launcher = [str(Path(sys.executable).with_name("torchrun")), "--nproc-per-node", "8", str(START), checkout]
    model = ["--model.name", "llama3", "--model.flavor", size, "--model.norm_type", "rmsnorm"]
    training = ["--optimizer.name", "AdamW", "--training.seq_len", "8192", "--training.steps", "3"]
    told = ["--training.warmup_steps", "2", "--metrics.log_freq", "1", "--metrics.disable_color_printing"]
    kept = ["--activation_checkpoint.mode", checkpointing, "--activation_checkpoint.selective_ac_option", "op"]
    return [sys.executable, "-m", "oomdoctor", *ours, *launcher, *model, *training, *told, *kept, *options]


def row_of(checkout: str, name: str) -> dict[str, Any]:
    """Return a row's figures."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            command_of(checkout, name), cwd=folder, env=os.environ | _ENVIRONMENT, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
    found = dict(_MEMORY.findall(done.stdout + done.stderr))
    published = ROWS[name][1]
    if "3" not in found:
        lines = [line for line in done.stderr.strip().splitlines() if not line.startswith("oomdoctor: rank")]
        return {"published_gib": published, "error": lines[-1:], "holds": False}
    percent = round(100 * (float(found["3"]) / published - 1), 2)
    holds = abs(percent) <= MOST_PERCENT
    row = {"published_gib": published, "reserved_gib": float(found["3"]), "error_percent": percent, "holds": holds}
    causes = [cause for part, cause in CAUSES.items() if part in name]
    return row if holds else row | {"cause": ", ".join(causes) or "not found"}


def main(checkout: str, names: list[str]) -> int:
    """Run the rows, all by default, and save them beside those of other PyTorches."""
    rows: dict[str, dict[str, Any]] = {}
    for name in names or ROWS:
        rows[name] = row_of(str(Path(checkout).resolve()), name)
        print(name, rows[name], flush=True)
        save_rows_of_torch(FILE, rows, gpu=GPU, most_percent=MOST_PERCENT)
    return int(not all(row["holds"] for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
