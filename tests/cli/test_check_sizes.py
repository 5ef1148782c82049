"""`oomdoctor check` of other sizes than the micro-batch: the largest value, buckets in turn, and the fastest."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from running import Run
from test_buckets import REMEMBERS
from test_check import SCHEMA
from test_frontier import QUADRATIC
from test_sizes import LOOP, MODEL

pytestmark = [pytest.mark.null_gpu, pytest.mark.usefixtures("forked_workers")]

CARD = ("--gpu", "rtx-4090", "--capacity", "64MiB")
TOP = 'gpu = "rtx-4090"\ncapacity = "64MiB"\nbaseline = true\n\n'
LARGEST = """\
[[check]]
name = "longest"
target = "model.py"
largest = "length"
micro-batch = 64
multiple-of = 16
"""


def checked(folder: Path, run: Run, text: str, exit_code: int, *options: str) -> dict[str, dict[str, Any]]:
    """Return the entries of a check's document by name."""
    (folder / "oomdoctor.toml").write_text(TOP + text)
    ended = run("check", *options, "--json", "-q")
    document = json.loads(ended.stdout)
    assert (ended.returncode, document["exit_code"]) == (exit_code, exit_code), ended.stderr
    jsonschema.validate(document, SCHEMA)
    return {entry["name"]: entry for entry in document["result"]["entries"]}


def broken(entry: dict[str, Any]) -> list[str]:
    """Return the names of the limits that an entry breaks."""
    return [limit["name"] for limit in entry["limits"] if not limit["holds"]]


def test_the_largest_length_is_that_of_a_probe(tmp_path: Path, oomdoctor_here: Run) -> None:
    """What is asked for passes up to the edge that `probe --largest` finds, and not above; the answer is kept."""
    (tmp_path / "model.py").write_text(MODEL)
    question = ("--largest", "length", "--micro-batch", "64", "--multiple-of", "16", "--json")
    (cell,) = json.loads(oomdoctor_here("probe", "model.py", *CARD, *question).stdout)["result"]["cells"]
    edge = cell["maximum"]
    entries = f"{LARGEST}at-least = {edge}\n\n{LARGEST.replace('longest', 'longer')}at-least = {edge + 1}\n"
    found = checked(tmp_path, oomdoctor_here, entries, 1)

    assert found["longest"]["searched"]["cells"] == [cell]
    assert (found["longest"]["verdict"], found["longest"]["probe"], found["longest"]["baseline"]) == (
        "passed",
        None,
        "none",
    )
    assert broken(found["longer"]) == ["at-least"]
    assert found["longer"]["limits"][0]["found"] == edge
    again = oomdoctor_here("check").stdout + oomdoctor_here("check").stderr
    assert f"length {edge}" in again
    assert "longest: `length`" in again
    assert again.count(", cached") == 2


def test_the_headroom_and_each_combination_of_sizes_are_asked_for(tmp_path: Path, oomdoctor_here: Run) -> None:
    """A length that leaves too little free breaks the headroom; with another size varied each value is an entry."""
    (tmp_path / "model.py").write_text(MODEL)
    tight = f'{LARGEST}over = {{ hidden = [32, 64] }}\nheadroom = "50%"\nat-least = 432\n'
    found = checked(tmp_path, oomdoctor_here, tight, 1)

    assert list(found) == ["longest at hidden 32", "longest at hidden 64"]
    assert found["longest at hidden 32"]["searched"]["variant"]["axes"] == [{"name": "hidden", "size": 32}]
    small, large = (entry["searched"]["cells"][0] for entry in found.values())
    assert small["maximum"] > large["maximum"] > large["recommended"]
    assert "headroom" in broken(found["longest at hidden 64"])


def test_a_commands_placeholder_is_searched(tmp_path: Path, oomdoctor_here: Run) -> None:
    """A command is asked about the size that it has a placeholder for, at its own micro-batch."""
    (tmp_path / "train.py").write_text(MODEL + LOOP)
    words = json.dumps([sys.executable, "train.py", "{micro_batch}", "{length}"])
    entry = LARGEST.replace('target = "model.py"', f"command = {words}") + "at-least = 16\nup-to = 64\n"
    found = checked(
        tmp_path, oomdoctor_here, entry.replace('name = "longest"', 'name = "longest"\ncapacity = "1GiB"'), 0
    )

    assert found["longest"]["searched"]["cells"][0]["maximum"] == 64


def test_buckets_take_turns_in_one_process(tmp_path: Path, oomdoctor_here: Run) -> None:
    """Buckets that `probe` prints pass from a file as they are; those that fit alone only break the limit."""
    (tmp_path / "model.py").write_text(REMEMBERS)
    over = ("--over", "length=64,32", "--buckets", "json", "--output", "found.json")
    oomdoctor_here("probe", "model.py", *CARD, *over)
    result = json.loads((tmp_path / "found.json").read_text())["result"]
    printed = oomdoctor_here("report", "found.json").stdout
    (tmp_path / "buckets.json").write_text(next(line for line in printed.splitlines() if line.startswith("[")))
    alone = ", ".join(
        f"{{ length = {cell['sizes'][0]['size']}, micro-batch = {cell['recommended']} }}" for cell in result["cells"]
    )
    entries = '[[check]]\nname = "proven"\ntarget = "model.py"\nbucket-file = "buckets.json"\n\n'
    entries += f'[[check]]\nname = "alone"\ntarget = "model.py"\nbuckets = [{alone}]\n'
    found = checked(tmp_path, oomdoctor_here, entries, 1)

    assert found["proven"]["verdict"] == "passed"
    by_length = sorted(result["buckets"]["rows"], key=lambda row: row["sizes"][0]["size"])
    assert found["proven"]["buckets"]["rows"] == by_length
    assert broken(found["alone"]) == ["buckets"]
    assert found["alone"]["buckets"]["percent"] == result["buckets"]["percent"] < 100
    said = oomdoctor_here("check", "alone").stdout
    assert f"at most {result['buckets']['percent']} %" in " ".join(said.split())


def test_a_bucket_that_nothing_can_make_fit_fails(tmp_path: Path, oomdoctor_here: Run) -> None:
    """Where a sample of each runs out, the limit is broken and the bucket is named; an unknown size is an error."""
    (tmp_path / "model.py").write_text(QUADRATIC.replace("if batch.shape[1] > 500", "if False"))
    row = "buckets = [{ length = 8, micro-batch = 4 }, { length = 40000, micro-batch = 1 }]\n"
    entries = f'[[check]]\nname = "long"\ntarget = "model.py"\n{row}\n[[check]]\nname = "typo"\ntarget = "model.py"\n'
    found = checked(tmp_path, oomdoctor_here, entries + row.replace("length", "lenght"), 2)

    assert (found["long"]["buckets"]["percent"], broken(found["long"])) == (0, ["buckets"])
    assert "in the bucket of length 40000: CUDA out of memory" in found["long"]["limits"][0]["text"]
    assert found["typo"]["problem"]["message"] == "`make_batch` takes no `lenght`"
    assert "did you mean `length`?" in found["typo"]["problem"]["hint"]


def test_the_fastest_has_no_answer_without_a_clock(tmp_path: Path, oomdoctor_here: Run) -> None:
    """On a null GPU the entry says so in the sentence of `probe --fastest` and exits as that does, with 3."""
    (tmp_path / "model.py").write_text(MODEL)
    entry = '[[check]]\nname = "speed"\ntarget = "model.py"\nbaseline = false\ntarget-batch = 64\n'
    found = checked(tmp_path, oomdoctor_here, entry + "min-samples-per-second = 100\n", 3)["speed"]
    probed = oomdoctor_here("probe", "model.py", *CARD, "--target-batch", "64", "--fastest", "--json")

    assert probed.returncode == 3
    assert found["verdict"] == "no_answer"
    problem = json.loads(probed.stdout)["result"]["throughput"]["problem"]
    assert problem in found["problem"]["message"]
    assert found["probe"]["throughput"]["problem"] == problem
    assert shutil.which("nvidia-smi") is None or found["probe"]["device"]["kind"] == "null"
