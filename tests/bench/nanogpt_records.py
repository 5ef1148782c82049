"""Peaks of modded-nanogpt's records as a lone rank, beside those that eight H100s had.

https://github.com/KellerJordan/modded-nanogpt keeps a log of each of its records: the whole script, and at the end what
`torch.cuda.max_memory_allocated` and `max_memory_reserved` said on rank 0. The script is taken from the log of a
checkout, which whoever runs this makes, and trains three iterations instead of some 1,500, on random tokens; both
validations are as they were. The logs say which PyTorch ran, nightly builds that are no longer to be had.

Usage: python tests/bench/nanogpt_records.py CHECKOUT [RECORDS]
"""

from __future__ import annotations

import os
import random
import re
import struct
import subprocess
import sys
import tempfile
from array import array
from pathlib import Path
from typing import Any, Final

from measuring import RESULTS, save_rows_of_torch

FILE: Final = RESULTS / "nanogpt_records.json"
GPU: Final = "h100-sxm-80gb"
WORLD: Final = 8
MOST_PERCENT: Final = 0.5
RECORDS: Final = ("2024-12-10_MFUTweaks", "2024-12-17_SparsifyEmbeds", "2025-01-04_SoftCap", "2025-05-24_StableTorch")
_AFTER_THE_SCRIPT: Final = "=" * 100
_ITERATIONS: Final = re.compile(r"(num_iterations\s*(?::\s*int\s*)?)=\s*\d+")
_PEAK: Final = re.compile(r"^peak memory (?:allocated|consumption): (\d+) MiB(?: reserved: (\d+) MiB)?$", re.MULTILINE)
_VERSION: Final = re.compile(r"^Running py[tT]orch (\S+)", re.MULTILINE | re.IGNORECASE)
_TOKENS: Final = {"fineweb_val_000000": 10_485_760 + 1024, "fineweb_train_000001": 4 * WORLD * 65_536 + 1024}
"""Tokens of the files that the scripts read: a validation, and more than three iterations."""
_HEADER: Final = (20240520, 1)
_END_OF_TEXT: Final = 50256
_DOCUMENT: Final = 800


def published(log: str) -> dict[str, Any]:
    """Return what a log's last line says, and the PyTorch that ran."""
    source, _, rest = log.partition(_AFTER_THE_SCRIPT)
    version, (allocated, reserved) = _VERSION.findall(rest)[0], _PEAK.findall(rest)[-1]
    found = {"torch": version, "allocated_mib": int(allocated), "script_lines": len(source.splitlines())}
    return found | ({"reserved_mib": int(reserved)} if reserved else {})


def write_data(folder: Path) -> None:
    """Write files of random tokens, cut into documents, as the scripts read them."""
    folder.mkdir(parents=True)
    for name, count in _TOKENS.items():
        tokens = array("H", random.Random(0).choices(range(_END_OF_TEXT), k=count))
        for place in range(0, count, _DOCUMENT):
            tokens[place] = _END_OF_TEXT
        header = struct.pack("<256i", *_HEADER, count, *[0] * 253)
        (folder / f"{name}.bin").write_bytes(header + tokens.tobytes())


def run(log: str, folder: Path) -> dict[str, Any]:
    """Run a log's script as rank 0 of eight, and return what it says itself; its error where it ends before that."""
    source = log.partition(_AFTER_THE_SCRIPT)[0]
    (folder / "train.py").write_text(_ITERATIONS.sub(r"\1= 3", source), encoding="utf-8")
    programs = folder / "programs"
    (folder / "logs").mkdir()
    programs.mkdir()
    (programs / "nvidia-smi").write_text("#!/bin/sh\n", encoding="utf-8")  # which the scripts call, for their logs
    (programs / "nvidia-smi").chmod(0o755)
    ours = ["run", "--no-history", "--world-size", str(WORLD), "--rank", "0", "--gpu", GPU, "--"]
    launcher = [str(Path(sys.executable).with_name("torchrun")), "--nproc-per-node", str(WORLD), "train.py"]
    done = subprocess.run(
        [sys.executable, "-m", "oomdoctor", *ours, *launcher], cwd=folder, capture_output=True, text=True, check=False,
        env=os.environ | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"},
    )  # fmt: skip
    written = [path.read_text(encoding="utf-8") for path in folder.glob("logs/**/*.txt")]
    peaks = [peak for text in (done.stdout, *written) for peak in _PEAK.findall(text)]
    if not peaks:
        return {"error": [line for line in done.stderr.splitlines() if not line.startswith("oomdoctor: rank")][-1:]}
    allocated, reserved = peaks[-1]
    return {"allocated_mib": int(allocated)} | ({"reserved_mib": int(reserved)} if reserved else {})


def row_of(checkout: Path, record: str) -> dict[str, Any]:
    """Return a record's figures beside ours."""
    log = min((checkout / "records" / "track_1_short" / record).glob("*.txt")).read_text(encoding="utf-8")
    theirs = published(log)
    with tempfile.TemporaryDirectory() as name:
        write_data(Path(name, "data", "fineweb10B"))
        ours = run(log, Path(name))
    percents = {
        f"{what}_error_percent": round(100 * (ours[f"{what}_mib"] / theirs[f"{what}_mib"] - 1), 2)
        for what in ("allocated", "reserved")
        if f"{what}_mib" in ours and f"{what}_mib" in theirs
    }
    holds = bool(percents) and all(abs(percent) <= MOST_PERCENT for percent in percents.values())
    return {"published": theirs, "ours": ours, **percents, "holds": holds}


def main(checkout: str, records: list[str]) -> int:
    """Run the records, all by default, and save them beside those of other PyTorches."""
    rows: dict[str, dict[str, Any]] = {}
    for record in records or RECORDS:
        rows[record] = row_of(Path(checkout).resolve(), record)
        print(record, rows[record], flush=True)
        save_rows_of_torch(FILE, rows, gpu=GPU, most_percent=MOST_PERCENT)
    return int(not all(row["holds"] for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
