"""Other tools that find a batch size, beside oomdoctor: the same examples, cards and precisions, on the null GPU.

Each tool is its own package, driven by a loop of `peers_loops.py`, which the page shows. The truth comes from fresh
processes that run three optimizer steps of a plain loop: the largest size that fits while the next four do not, once
with one micro-batch a step and once with two. A tool looks for the plain one.

The file is written after every case, and what it has from the same versions is kept, so a run that was cut short goes
on.

Usage: python tests/bench/peers.py [--only EXAMPLE...] [--cards KEY...] [--table]
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import os
import resource
import statistics
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from measuring import EXAMPLES, PRECISIONS, RESULTS, machine, replace_block, save

from oomdoctor.engines.catalogue import find_card
from oomdoctor.engines.installed import find_torch
from oomdoctor.engines.null_gpu.library import environment
from oomdoctor.progress import SilentProgress
from oomdoctor.request import ProbeRequest
from oomdoctor.results import Variant
from oomdoctor.trial.probe import probe
from oomdoctor.units import GIB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

Row = dict[str, Any]
FILE = RESULTS / "peers.json"
PAGE = Path(__file__).parents[2] / "docs" / "accuracy.md"
LOOPS = Path(__file__).with_name("peers_loops.py")
CARDS = ("t4", "rtx-4090", "a100-sxm4-80gb")
TOOLS = {
    "Lightning, power": "lightning",
    "Lightning, binsearch": "lightning",
    "accelerate": "accelerate",
    "HF Trainer": "transformers",
    "toma": "toma",
    "torch-max-mem": "torch-max-mem",
    "batch-probe": "batch-probe",
    "batch-finder": "batch-finder",
}
OURS = "oomdoctor"
LARGEST = 8192
IN_A_ROW = 4
"""Sizes above the truth that do not fit: memory is not monotone to the last sample."""


class Forks:
    """Fresh processes on one null GPU, forked from one that has imported torch and the tools."""

    def __init__(self, card: str) -> None:
        build = find_torch()
        if build is None:
            raise SystemExit("error: torch is not installed")
        env = environment(find_card(card), build, {**os.environ, "TQDM_DISABLE": "1", "HF_HUB_OFFLINE": "1"})
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(LOOPS)], env=env, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def ask(self, **question: object) -> Row:
        """Answer one question of `peers_loops.py` in a fork."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer: Row = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)


def truth(fits: Callable[[int], bool], guess: int) -> int:
    """Return the largest size that fits while the next four do not, sought from a guess; 0 where none does."""
    low = max(guess, 1)
    while not fits(low):
        if low == 1:
            return 0
        low = max(1, low * 49 // 50 - 1)
    while True:
        following = next((size for size in range(low + 1, low + 1 + IN_A_ROW) if fits(size)), None)
        if following is None:
            return low
        low = _bisected(fits, following)


def _bisected(fits: Callable[[int], bool], low: int) -> int:
    step, high = 1, low + 1
    while fits(high):
        low, step = high, step * 2
        high = low + step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def ours(example: str, precision: Any, card: str) -> Row:
    """Return what a probe answers: the maximum with accumulation, the plain one, the recommended size."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    request = ProbeRequest(
        target=example, directory=Path.cwd(), target_batch=LARGEST, gpu=card, engine="null",
        variant=Variant(precision=precision), profiles=False,
    )  # fmt: skip
    result = probe(request, SilentProgress()).result
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    sizes = result.micro_batch
    return {
        "answer": sizes.maximum,
        "plain": sizes.plain_maximum if sizes.plain_maximum is not None else sizes.maximum,
        "recommended": sizes.recommended,
        "trials": len(result.trials),
        "cpu_seconds": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 2),
        "left_bytes": 0,
        "steps": result.accumulation.steps if result.accumulation else None,
    }


def answers(example: str, precision: str, card: str, forks: Forks) -> Row:
    """Return one case: the truth, and what each tool answers."""

    @cache
    def fits(size: int, micro_steps: int) -> bool:
        return bool(
            forks.ask(example=example, precision=precision, size=size, micro_steps=micro_steps).get("fits", False)
        )

    found = ours(example, precision, card)
    true = {
        "plain": truth(lambda size: fits(size, 1), found["plain"]),
        "accumulating": truth(lambda size: fits(size, 2), found["answer"]),
    }
    told: Row = {OURS: found}
    for tool in TOOLS:
        answer = forks.ask(example=example, precision=precision, tool=tool)
        told[tool] = {**answer, "trials": len(answer["tried"])}
    for answer in told.values():
        size = size_of(answer)
        answer["runs_out"] = size > true["plain"] and not fits(size, 1)
    return {"example": example, "precision": precision, "card": card, "truth": true, "answers": told}


def versions() -> dict[str, str]:
    """Versions of torch and of the tools."""
    return {name: metadata.version(name) for name in ("torch", *dict.fromkeys(TOOLS.values()))}


# --- the page --------------------------------------------------------------------------------------------------------


def size_of(answer: Row) -> int:
    """Return the size that an answer names for a step of one micro-batch; 0 where it names none."""
    return answer.get("plain", answer["answer"]) or 0


def line(tool: str, rows: Sequence[Row], found: Row) -> str:
    """Return a tool's line of the summary."""
    each = [(row["answers"][tool], row["truth"]["plain"]) for row in rows]
    exact = sum(size_of(answer) == true for answer, true in each)
    out = sum(answer["runs_out"] for answer, _ in each)
    share = statistics.median(100 * size_of(answer) / true for answer, true in each if true)
    trials, seconds, left = (
        statistics.median(answer[name] for answer, _ in each) for name in ("trials", "cpu_seconds", "left_bytes")
    )
    version = found["oomdoctor"] if tool == OURS else found["versions"][TOOLS[tool]]
    told = "yes" if tool == OURS else "no"
    figures = f"{exact} | {out} | {share:.0f} % | {trials:g} | {seconds:.1f} | {left / GIB:.1f} GiB"
    return f"| {tool} {version} | {figures} | {told} |"


def cell(tool: str, row: Row) -> str:
    """Return what a tool answered in one case, with its trials; in bold what runs out."""
    answer = row["answers"][tool]
    size = str(size_of(answer) or ("error" if answer.get("error") else "none"))
    return f"{f'**{size}**' if answer['runs_out'] else size} / {answer['trials']}"


def block(found: Row) -> Iterator[str]:
    """Yield the lines of the page."""
    rows, tools = found["cases"], (OURS, *TOOLS)
    yield (
        f"| tool | the truth, of {len(rows)} | runs out | median of the truth | median trials | median CPU seconds | "
        "median left reserved | plans accumulation |"
    )
    yield "|---|---:|---:|---:|---:|---:|---:|---|"
    yield from (line(tool, rows, found) for tool in tools)
    yield ""
    accumulating = [row for row in rows if row["answers"][OURS]["answer"] == row["truth"]["accumulating"]]
    recommended = [row for row in rows if row["answers"][OURS]["recommended"] <= min(row["truth"].values())]
    smaller = [row for row in rows if row["truth"]["accumulating"] < row["truth"]["plain"]]
    yield (
        f"With accumulated gradients the truth is smaller in {len(smaller)} of {len(rows)} cases; oomdoctor names it "
        f"in {len(accumulating)}. The size that oomdoctor recommends is at most both truths in {len(recommended)}."
    )
    yield ""
    yield f"<details markdown><summary>Each of the {len(rows)} cases</summary>"
    yield ""
    yield f"| example | precision | card | truth: plain, accumulating | {' | '.join(tools)} |"
    yield "|---" * (4 + len(tools)) + "|"
    for row in rows:
        true = f"{row['truth']['plain']}, {row['truth']['accumulating']}"
        cells = " | ".join(cell(tool, row) for tool in tools)
        yield f"| {row['example']} | {row['precision']} | {row['card']} | {true} | {cells} |"
    yield ""
    yield "</details>"
    yield ""
    yield "<details markdown><summary>The loop of each tool</summary>"
    yield ""
    yield "```python"
    yield from loops().splitlines()
    yield "```"
    yield ""
    yield "</details>"


def loops() -> str:
    """Return the source of the loops."""
    text = LOOPS.read_text(encoding="utf-8")
    return text.partition("# --- the loops: what a user writes")[2].partition("\n")[2].partition("\nLOOPS: ")[0].strip()


def write_page(found: Row) -> None:
    """Put the tables into the page."""
    page = replace_block(PAGE.read_text(encoding="utf-8"), "peers", "\n".join(["", *block(found), ""]))
    PAGE.write_text(page, encoding="utf-8")


def main() -> None:
    """Run the bench, or write its page."""
    parser = argparse.ArgumentParser(description=inspect.getdoc(sys.modules[__name__]))
    parser.add_argument("--only", nargs="+", default=EXAMPLES)
    parser.add_argument("--cards", nargs="+", default=CARDS)
    parser.add_argument("--table", action="store_true")
    chosen = parser.parse_args()
    if chosen.table:
        write_page(json.loads(FILE.read_text(encoding="utf-8")))
        return
    document = {**machine(), "versions": versions(), "cases": []}
    with contextlib.suppress(OSError):
        earlier = json.loads(FILE.read_text(encoding="utf-8"))
        document["cases"] = earlier["cases"] if earlier["versions"] == document["versions"] else []
    known = {(row["example"], row["precision"], row["card"]) for row in document["cases"]}
    for card in chosen.cards:
        forks = Forks(card)
        for case in ((example, precision, card) for example in chosen.only for precision in PRECISIONS):
            if case not in known:
                document["cases"].append(answers(*case, forks))
                print(json.dumps(document["cases"][-1]), flush=True)
                save(FILE, document)
        forks.close()


if __name__ == "__main__":
    main()
