"""An interrupted `oomdoctor prescribe` prints what was measured until then."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import jsonschema
import pytest
from running import interrupt_once_begun
from test_prescribe_files import BLOCKS, CARD

import oomdoctor
from oomdoctor.remedies.catalogue import REMEDIES

pytestmark = [pytest.mark.null_gpu, pytest.mark.slow]

SCHEMA = Path(oomdoctor.__file__).parent / "schemas" / "prescribe.schema.json"
# Its step under autocast says that it has begun, and never ends.
STUCK = BLOCKS.replace(
    "    return model(batch)",
    """\
    if torch.is_autocast_enabled("cuda"):
        import pathlib, time

        pathlib.Path(__file__).with_name("begun").touch()
        time.sleep(300)
    return model(batch)""",
)
MEASURED = ("checkpoint", "bf16", "adafactor")


def interrupted(folder: Path, number: int, *options: str) -> subprocess.CompletedProcess[str]:
    """Send the signal while `bf16` is measured; `checkpoint` has been, and `adafactor` has not."""
    (folder / "model.py").write_text(STUCK)
    left_out = [word for one in REMEDIES if one.id not in MEASURED for word in ("--without", one.id)]
    return interrupt_once_begun(folder, number, "prescribe", "model.py", *CARD, *left_out, *options, "-j", "1", "-q")


STATE = "1 of 3 rows of this round, 2 of at most 80 probes done, measuring bf16"


def test_an_interrupt_prints_the_rows_until_then(tmp_path: Path) -> None:
    """Exit code 130, the table with what was measured, and the remedy that was being measured on standard error."""
    done = interrupted(tmp_path, signal.SIGINT, "--write", "better.py")
    assert (done.returncode, done.stderr) == (130, f"interrupted\n{STATE}\n")
    lines = list(filter(None, done.stdout.splitlines()))
    table = ["remedies", "─", "as", "checkpoint"]  # once for what remedies give, and once for what they cost
    assert [line.split()[0].strip("─") or "─" for line in lines[:9]] == [*table, *table, "model.py,"]
    assert "bf16, adafactor: not measured: the measuring was interrupted before." in lines
    assert f"Interrupted with {STATE}; `model.py` fits micro-batch" in done.stdout
    assert "with `checkpoint`, the most of what was measured." in done.stdout
    assert "Nothing was written to `better.py`: the measuring was interrupted." in lines
    assert sorted(path.name for path in tmp_path.glob("*.py")) == ["model.py"]


def test_a_polite_end_writes_a_document_that_says_so(tmp_path: Path) -> None:
    """SIGTERM, as a time limit sends it: the status is `interrupted`, and what is missing is named."""
    done = interrupted(tmp_path, signal.SIGTERM, "--json", "-o", "report.json")
    assert done.returncode == 130
    document = json.loads((tmp_path / "report.json").read_text())
    jsonschema.validate(document, json.loads(SCHEMA.read_text()))
    assert (document["status"], document["exit_code"]) == ("interrupted", 130)
    result = document["result"]
    assert (result["interrupted"], result["probes"], result["prescribed"]) == (STATE, 2, None)
    assert {row["remedies"][0]: row["outcome"] for row in result["alone"]} == {
        "checkpoint": "measured",
        "bf16": "not_measured",
        "adafactor": "not_measured",
    }
