"""What the null GPU says of the batch sizes that timm's authors found for training on an RTX 3090.

Their benchmark tries sizes downwards (512, 384, 256, 192, ...), so that each model has one that fitted and the next
larger one, which ran out. Every sixth model by name is asked about, where the installed timm still has it at the same
image size: at both sizes, and where the larger one fits, again with the headroom of a recommended size withheld.

The file is written after every row, and what it has from the same versions is kept.

Usage: python tests/bench/fidelity_intervals.py [--anew]
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
from pathlib import Path
from typing import Any, Final

from fidelity import ZOO, earlier, runs_out, versions
from measuring import RESULTS, gibibytes, machine, replace_block, save

from oomdoctor.engines.catalogue import find_card
from oomdoctor.errors import OomdoctorError
from oomdoctor.request import build_request
from oomdoctor.target.reference import parse_reference
from oomdoctor.trial.client import WorkerTrialSource
from oomdoctor.trial.probe import engine_for

Row = dict[str, Any]
FILE = RESULTS / "fidelity_intervals.json"
TRUTH = Path(__file__).parent / "truth" / "timm_intervals.csv"
PAGE = Path(__file__).parents[2] / "docs" / "accuracy.md"
CARD: Final = "rtx-3090"
CONTEXT_BYTES: Final = gibibytes(1.2)
"""Of CUDA 11.3, which loaded all kernels at the start; pytorch/pytorch#86509 has what those take."""
EVERY: Final = 6
HEADROOM: Final = 0.05


def read_truth(path: Path = TRUTH) -> list[Row]:
    """Read every sixth model by name, with the sizes as integers."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: row["model"])
    return [
        {"model": row["model"], **{name: int(row[name]) for name in ("img_size", "fitted", "next_tried")}}
        for row in rows[::EVERY]
    ]


def why_not(row: Row) -> str | None:
    """Return why a row cannot be asked about with the timm that is installed; None where it can."""
    import timm
    import torch

    name = row["model"]
    if not timm.is_model(name):
        return "timm has no such model today"
    with torch.device("meta"):
        side = timm.data.resolve_data_config({}, model=timm.create_model(name))["input_size"][-1]
    return None if side == row["img_size"] else f"its images have {side} pixels today"


def answer(row: Row) -> Row:
    """Ask about a row's sizes: whether each fits, and the larger one with headroom withheld too."""
    target = f"published_timm.py:build_model('{row['model']}')"
    capacity = find_card(CARD).total_bytes - CONTEXT_BYTES
    question = build_request(target, directory=ZOO, gpu=CARD, capacity=capacity, engine="null")
    found: Row = {}
    try:
        engine = engine_for(question)
        with WorkerTrialSource(question, parse_reference(target, directory=ZOO), engine.environment) as source:
            source.load()
            found["fitted"] = _fits(source, row["fitted"], capacity)
            found["next_tried"] = _fits(source, row["next_tried"], capacity)
            found["recommended"] = found["next_tried"] and _fits(
                source, row["next_tried"], int(capacity * (1 - HEADROOM))
            )
    except (OomdoctorError, RuntimeError) as error:
        found["problem"] = f"{type(error).__name__}: {error}"
    return found


def _fits(source: WorkerTrialSource, size: int, allowed_bytes: int) -> bool:
    return not runs_out(source.run(size, micro_steps=1, allowed_bytes=allowed_bytes))


def place(said: Row) -> str:
    """Return where our largest size is: inside the interval, above or below it."""
    if not said["fitted"]:
        return "too low"
    return "too high" if said["next_tried"] else "inside"


def summary(answers: dict[str, Row]) -> Row:
    """Count where our sizes are, and whose recommended size ran out on the card."""
    known = {name: said for name, said in answers.items() if "problem" not in said}
    places = {name: place(said) for name, said in known.items()}
    return {
        "rows": len(known),
        "inside": sum(one == "inside" for one in places.values()),
        "too_high": sorted(name for name, one in places.items() if one == "too high"),
        "too_low": sorted(name for name, one in places.items() if one == "too low"),
        "recommended_ran_out": sorted(name for name, said in known.items() if said["recommended"]),
        "problems": {name: said["problem"] for name, said in answers.items() if "problem" in said},
    }


def page_block(said: Row) -> str:
    """Return the lines of the page on accuracy."""
    rows, high, low = said["rows"], said["too_high"], said["too_low"]
    inside, ran_out = said["inside"], said["recommended_ran_out"]
    lines = ["", f"Of {rows} models, {inside} ({inside / rows:.0%}) have their largest size inside the interval,"]
    lines.append(
        f"{len(high)} above it and {len(low)} below. A size that is recommended with 5 % withheld ran out on the"
    )
    lines.append(f"card in {len(ran_out)}.")
    if high:
        lines += ["", f"Above: {', '.join(f'`{name}`' for name in high)}."]
    if low:
        lines += ["", f"Below: {', '.join(f'`{name}`' for name in low)}."]
    if ran_out:
        lines += ["", f"Recommended, and ran out: {', '.join(f'`{name}`' for name in ran_out)}."]
    return "\n".join(lines)


def definition() -> Row:
    """What an answer depends on besides its row."""
    import timm

    return {"versions": {**versions(), "timm": timm.__version__}, "every": EVERY, "context_bytes": CONTEXT_BYTES}


def main() -> int:
    """Run the bench and write the page; 1 where a row has no answer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--anew", action="store_true", help="keep no earlier answer")
    arguments = parser.parse_args()
    os.environ["TIMM_FUSED_ATTN"] = "0"
    known = {} if arguments.anew else earlier(FILE, definition())
    answers = {name: said for name, said in known.items() if "problem" not in said}
    left_out: dict[str, str] = {}
    for row in read_truth():
        if (reason := why_not(row)) is not None:
            left_out[row["model"]] = reason
        elif row["model"] not in answers:
            answers[row["model"]] = answer(row)
            print(row, answers[row["model"]], flush=True)
        said = summary(answers)
        save(FILE, {"machine": machine(), "definition": definition(), "summary": said, "left_out": left_out,
                    "answers": answers})  # fmt: skip
    page = replace_block(PAGE.read_text(encoding="utf-8"), "intervals", f"{page_block(said)}\n")
    PAGE.write_text(page, encoding="utf-8")
    return int(bool(said["problems"]))


if __name__ == "__main__":
    sys.exit(main())
