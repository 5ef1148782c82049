"""What the null GPU says of single measurements that others published, each with its own settings.

Where the figure is what NVML saw in use, the context that its author measured is taken off.

Usage: python tests/bench/fidelity_points.py
"""

from __future__ import annotations

import csv
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fidelity import ZOO, versions
from measuring import RESULTS, machine, replace_block, save

from oomdoctor.errors import OomdoctorError
from oomdoctor.request import build_request
from oomdoctor.results import Outcome
from oomdoctor.target.reference import parse_reference
from oomdoctor.trial.client import WorkerTrialSource
from oomdoctor.trial.probe import engine_for
from oomdoctor.units import MIB

Row = dict[str, Any]
FILE = RESULTS / "fidelity_points.json"
TRUTH = Path(__file__).parent / "truth" / "published_points.csv"
PAGE = Path(__file__).parents[2] / "docs" / "accuracy.md"
_NVML_CONTEXT_BYTES: Final = 1343 * MIB
"""What `perf_train_gpu_one` of transformers saw in use with one tensor on the card."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How a row of the table is run, in its order.

    Attributes:
        model: Arguments of `build_model` of `zoo/published_points.py`.
        batch: Samples in a micro-batch.
        micro_steps: Micro-batches a step.
        precision: Precision of the trial.
        card: Card that is asked about.
    """

    model: str
    batch: int
    micro_steps: int = 1
    precision: str = "fp32"
    card: str = "a100-sxm4-80gb"


_V100: Final = "v100-sxm2-16gb"
SETTINGS: Final = (
    Settings("'vit-10', 'Adam', late=True", 64),
    Settings("'vit-10', 'Adam', late=True", 64, precision="fp16"),
    Settings("'vit-10', 'Adam', dtype='bfloat16', late=True", 64),
    Settings("'vit-10', 'Adam', dtype='bfloat16', late=True", 16),
    Settings("'vit-10', 'Adam', dtype='bfloat16'", 4, micro_steps=4),
    Settings("'bert', 'AdamW'", 4, card=_V100),
    Settings("'bert', 'AdamW'", 1, micro_steps=4, card=_V100),
    Settings("'bert', 'AdamW', checkpoint=True", 1, micro_steps=4, card=_V100),
    Settings("'bert', 'AdamW'", 4, precision="fp16", card=_V100),
    Settings("'bert', 'AdamW', checkpoint=True", 1, micro_steps=4, precision="fp16", card=_V100),
    Settings("'bert', 'Adafactor'", 4, card=_V100),
    Settings("'bert', 'Adafactor', checkpoint=True", 1, micro_steps=4, precision="fp16", card=_V100),
    Settings("'vit-1000', 'Adam'", 1),
    Settings("'vit-1000', 'in-backward'", 1),
    Settings("'gpt2', 'AdamW'", 8),
)


def read_truth(path: Path = TRUTH) -> list[Row]:
    """Read the published figures, with what is compared: bytes without the context."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = [dict(row) for row in csv.DictReader(file)]
    for row in rows:
        context = _NVML_CONTEXT_BYTES if row["measure"].startswith("NVML") else 0
        row["compared_bytes"] = int(row["measured_bytes"]) - context
    return rows


def is_allocated(row: Row) -> bool:
    """Return whether a row tells bytes in live tensors; others tell what is held of the driver."""
    return row["measure"].startswith(("peak allocated", "peak of the profile"))


def answer(row: Row, settings: Settings) -> Row:
    """Run a row: its peak, or why there is none."""
    target = f"published_points.py:build_model({settings.model})"
    question = build_request(target, directory=ZOO, gpu=settings.card, engine="null", precision=settings.precision)
    try:
        with WorkerTrialSource(
            question, parse_reference(target, directory=ZOO), engine_for(question).environment
        ) as source:
            source.load()
            trial = source.run(settings.batch, micro_steps=settings.micro_steps, allowed_bytes=source.capacity_bytes)
    except (OomdoctorError, RuntimeError) as error:
        return {"problem": f"{type(error).__name__}: {error}"}
    if trial.outcome is not Outcome.FITS:
        return {"problem": f"the trial ended as `{trial.outcome.value}`: {trial.error}"}
    ours = trial.peak_allocated_bytes if is_allocated(row) else trial.peak_reserved_bytes
    return {"bytes": ours, "error": round(ours / row["compared_bytes"] - 1, 4)}


def page_block(rows: list[Row]) -> str:
    """Return the table of the page on accuracy."""
    lines = ["", "| model | settings | source | published | ours | error |", "| --- | --- | --- | ---: | ---: | ---: |"]
    for row in rows:
        said = row["ours"]
        figures = (
            f"{said['bytes'] / 1e9:.2f} GB | {said['error']:+.1%}" if "bytes" in said else f"{said['problem']} | none"
        )
        cells = (row["model"], row["settings"], row["source"], f"{row['compared_bytes'] / 1e9:.2f} GB", figures)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    """Run the bench and write the page; 1 where a row has no answer."""
    rows = read_truth()
    for row, settings in zip(rows, SETTINGS, strict=True):
        row["ours"] = answer(row, settings)
        print(row["model"], row["settings"], row["compared_bytes"], row["ours"], flush=True)
    save(FILE, {"machine": machine(), "versions": versions(), "rows": rows})
    page = replace_block(PAGE.read_text(encoding="utf-8"), "points", f"{page_block(rows)}\n")
    PAGE.write_text(page, encoding="utf-8")
    return int(any("problem" in row["ours"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
