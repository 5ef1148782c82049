"""How long twelve lengths of GPT-2 take, beside `import torch`, and whether a file with each length answers the same.

Usage: python tests/bench/frontier_speed.py [ROUNDS]
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Final

from measuring import RESULTS, machine, save
from trace_speed import IMPORT, OOMDOCTOR, seconds_of

from oomdoctor.engines.installed import find_torch
from oomdoctor.multi_card.pool import PooledProbe, StagedProgress, probe_all
from oomdoctor.progress import SilentProgress
from oomdoctor.request import build_request
from oomdoctor.trial.answer import ProbeRun

LENGTHS: Final = (128, 192, 256, 384, 512, 640, 768, 896, 1024, 1280, 1536, 2048)
"""Shorter and longer than the 1024 tokens of the example itself."""
GPU: Final = "rtx-4090"
COMMAND: Final = [
    *(*OOMDOCTOR, "probe", "gpt2", "--gpu", GPU, "--over", f"context={','.join(map(str, LENGTHS))}"),
    *("--jobs", "2", "--quiet", "--json"),
]
BELOW_SECONDS: Final = 20.0
_CONSTANT: Final = "CONTEXT = 1024"


def cells() -> list[list[int]]:
    """Length, largest and recommended micro-batch of each cell."""
    found = json.loads(subprocess.run(COMMAND, check=True, capture_output=True).stdout)["result"]["cells"]
    return [[cell["sizes"][0]["size"], cell["maximum"], cell["recommended"]] for cell in found]


def of_files() -> list[list[int]]:
    """Return the same by plain probes of files with the length written in."""
    source = Path(find_example()).read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as name:
        cases = []
        for length in LENGTHS:
            path = Path(name) / f"gpt2_{length}.py"
            path.write_text(source.replace(_CONSTANT, f"CONTEXT = {length}"), encoding="utf-8")
            cases.append(PooledProbe(path.name, replace(build_request(path, gpu=GPU), profiles=False)))
        answers = probe_all(cases, StagedProgress(SilentProgress(), len(cases)), jobs=2)
    sizes = [answer.result.micro_batch for answer in answers if isinstance(answer, ProbeRun)]
    return [[length, size.maximum, size.recommended] for length, size in zip(LENGTHS, sizes, strict=True)]


def find_example() -> str:
    """Return the path of the example, which must have its length as a constant."""
    from oomdoctor.examples import gpt2

    path = str(gpt2.__file__)
    if _CONSTANT not in Path(path).read_text(encoding="utf-8"):
        raise ValueError(path)
    return path


def main(rounds: int = 3) -> int:
    """Run the bench; 1 where it takes too long or a cell is another answer than its file's."""
    pairs = [(seconds_of(COMMAND), seconds_of(IMPORT)) for _ in range(rounds)]
    kinds = {}
    for place, kind in enumerate(("wall", "processor")):
        ours, imports = (statistics.median(pair[which][place] for pair in pairs) for which in (0, 1))
        kinds[kind] = {
            "command": round(ours, 2),
            "import_torch": round(imports, 2),
            "times": round(ours / imports, 2),
        }
        print(f"{kind}: {ours:.2f} s, import torch {imports:.2f} s, {ours / imports:.2f} times")
    found, files = cells(), of_files()
    for cell, file in zip(found, files, strict=True):
        print(*cell, "as the file" if cell == file else f"but the file: {file}")
    build = find_torch()
    row = {"command": " ".join(COMMAND[3:]), "below_seconds": BELOW_SECONDS, **kinds}
    about = {"machine": machine() | {"torch": build.version if build else None}, "rounds": rounds}
    save(RESULTS / "frontier_speed.json", {**about, **row, "cells": found, "of_files": files})
    return int(kinds["wall"]["command"] >= BELOW_SECONDS or found != files)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
