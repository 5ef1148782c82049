"""The models of the zoo on the GPU of this machine and on a null GPU of its properties: peaks of two micro-batches."""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from threading import Condition
from typing import TYPE_CHECKING, Any

from accuracy import is_runnable
from accuracy_trials import peaks_of, request
from gpu_rows import ask_sides, completed
from measuring import RESULTS
from zoo.cases import CASES, ZOO

from oomdoctor.engines.choice import choose_engine
from oomdoctor.errors import OomdoctorError
from oomdoctor.target.reference import parse_reference
from oomdoctor.trial.client import WorkerTrialSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gpu_rows import Sides
    from zoo.cases import Case

    from oomdoctor.engines.choice import Engine

Row = dict[str, Any]
LIMIT_BYTES = 26 << 30
"""What each model may take."""
CONTEXT_BYTES = 2 << 30
THIRDS = 3


class Room:
    """The memory that models which run at the same time share.

    Args:
        size: Bytes.
    """

    def __init__(self, size: int) -> None:
        self._free = self._size = size
        self._changed = Condition()

    @contextmanager
    def taken(self, size: int) -> Iterator[None]:
        """Wait until so many bytes are free, at most all there are, and hold them."""
        size = min(size, self._size)
        with self._changed:
            self._changed.wait_for(lambda: size <= self._free)
            self._free -= size
        try:
            yield
        finally:
            with self._changed:
                self._free += size
                self._changed.notify_all()


def runnable() -> list[Case]:
    """Return the cases whose models are installed here, so that the first of them are of all kinds."""
    found = [case for case in CASES if is_runnable(case)]
    return [case for third in range(THIRDS) for case in found[third::THIRDS]]


def expected_bytes() -> dict[str, int]:
    """Return the most that each case of the last comparison of engines reserved, by name."""
    rows = json.loads((RESULTS / "accuracy.json").read_text(encoding="utf-8"))["cases"]
    return {
        row["name"]: max(peak["reserved_bytes"] for peak in row["engines"]["null"]["peaks"].values()) for row in rows
    }


def compare(  # noqa: PLR0913, PLR0917 - as the other kinds of rows
    chosen: list[Case], room_bytes: int, null: Engine, sides: Sides, known: Mapping[str, Row], deadline: float,
    done: Callable[[str, Row], None],
) -> None:  # fmt: skip
    """Run models on each device that is asked, several at once, and hand over each row when it is there.

    Args:
        chosen: The models.
        room_bytes: What those that run at the same time share.
        null: The null GPU that has its properties.
        sides: The devices to ask.
        known: Rows of an earlier run, for the device that is not asked.
        deadline: Moment after which no model is begun.
        done: Is given each row.
    """
    room, expected = Room(room_bytes), expected_bytes()

    def ask(case: Case) -> Row | None:
        with room.taken(expected.get(case.name, LIMIT_BYTES) + CONTEXT_BYTES):
            if time.monotonic() > deadline:
                return None
            engines = {"real": None, "null": null}
            return ask_sides({side: partial(peaks, case, engines[side]) for side in sides})

    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 2)) as pool:
        asked = {pool.submit(ask, case): case.name for case in chosen}
        for answer in as_completed(asked):
            if answers := answer.result():
                done(asked[answer], completed(answers, known.get(asked[answer], {}), relative))


def peaks(case: Case, engine: Engine | None) -> Row:
    """Return the peaks of a model by micro-batch, and where it fails, the problem; no engine is the real card."""
    row: Row = {}
    question = replace(request(case, "cuda"), gpu=None, memory_bytes=LIMIT_BYTES)
    shown = engine or choose_engine(engine="cuda", gpu=None, device=None, memory_bytes=LIMIT_BYTES, base=os.environ)
    try:
        with WorkerTrialSource(question, parse_reference(case.target, directory=ZOO), shown.environment) as source:
            source.load()
            for size in case.sizes:
                trial = source.run(size, micro_steps=2, allowed_bytes=source.capacity_bytes)
                row[str(size)] = peaks_of(trial)
    except (OomdoctorError, RuntimeError) as error:  # the latter is how a worker tells of a bug of ours
        row["problem"] = f"{type(error).__name__}: {error}"
    return row


def relative(real: Row, ours: Row) -> Row | None:
    """Return the null GPU's relative errors by kind of peak; None where a device could not run the model."""
    if real.keys() != ours.keys() or not all(map(str.isdecimal, real)):
        return None
    return {
        kind: [round((ours[size][kind] - truth[kind]) / truth[kind], 6) for size, truth in real.items()]
        for kind in ("allocated_bytes", "reserved_bytes")
    }


def lines(rows: dict[str, Row]) -> list[str]:
    """Return the relative errors as a table."""
    found = ["| model | allocated | reserved |", "|---|---|---|"]
    for name, row in rows.items():
        said = row["comparison"]
        if said is None:
            found.append(f"| {name} | | {_problem(row['real']) or _problem(row['null'])} |")
            continue
        shown = (" and ".join(f"{error:+.2%}" for error in errors) for errors in said.values())
        found.append(f"| {name} | {' | '.join(shown)} |")
    return found


def _problem(answer: Row) -> str | None:
    found = answer.get("problem", answer.get("error"))
    return None if found is None else str(found)
