"""A probe that fails says so in the formats that programs read, as well as on standard error."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from running import Run
from targets_for_tests import write_target

from oomdoctor.cli import main
from oomdoctor.errors import EXIT_INTERRUPTED

QUESTION = ("probe", "absent.py", "--gpu", "t4")
MESSAGE = "no such file: `absent.py`"


def test_json_has_the_problem(tmp_path: Path, oomdoctor_here: Run) -> None:
    """The document has the frame of every document, and the problem in place of a result."""
    ended = oomdoctor_here(*QUESTION, "--json", "-q")

    document = json.loads(ended.stdout)
    assert ended.returncode == document["exit_code"] == 2
    assert (document["command"], document["status"]) == ("probe", "error")
    assert document["result"]["problem"]["message"].startswith(MESSAGE)
    assert f"error: {document['result']['problem']['message']}" in ended.stderr


def test_a_file_is_written_and_refused_as_a_result(tmp_path: Path, oomdoctor_here: Run) -> None:
    """The output file has the problem; to render it as a result is refused with the same message."""
    oomdoctor_here(*QUESTION, "-o", "out.json", "-q")
    assert json.loads((tmp_path / "out.json").read_text())["result"]["problem"]["details"] is None

    ended = oomdoctor_here("report", "out.json")

    assert ended.returncode == 2
    assert f"this is the document of a command that failed: {MESSAGE}" in ended.stderr


def test_a_long_problem_is_told_whole(tmp_path: Path, oomdoctor_here: Run) -> None:
    """The message stands there as it was, neither cut nor in quotation marks of JSON."""
    name = f"{'long' * 40}.py"
    oomdoctor_here("probe", name, "-o", "out.json", "-q")

    assert f"no such file: `{name}`" in oomdoctor_here("report", "out.json").stderr.replace("\n", "")


@pytest.mark.null_gpu
@pytest.mark.parametrize(
    ("step", "hint"),
    [
        ("return model(batch.cpu()).sum()", "oomdoctor places the model and the batch; remove `.to(...)`"),
        ("raise MemoryError", "the memory of this machine ran out, not the GPU's"),
    ],
)
def test_an_error_of_known_cause_is_the_files(tmp_path: Path, oomdoctor_here: Run, step: str, hint: str) -> None:
    """What would fail on any GPU alike is the file's fault and has its hint, also after values were read back."""
    write_target(tmp_path, training_step=f"def training_step(model, batch):\n    {step}")
    ended = oomdoctor_here("probe", "model.py", "--gpu", "t4", "-q")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "micro-batch 4 fails: the training step raised" in ended.stderr
    assert f"hint: {hint}" in ended.stderr


def test_continuous_integration_sees_the_error(oomdoctor_here: Run) -> None:
    """GitHub gets an annotation, JUnit an error, SARIF a notification of a run that did not succeed."""
    assert oomdoctor_here(*QUESTION, "--format", "github").stdout.startswith(
        "::error title=oomdoctor probe::No such file"
    )
    suites = ET.fromstring(oomdoctor_here(*QUESTION, "--format", "junit").stdout)  # noqa: S314 - our own
    assert suites.get("errors") == "1"
    run = json.loads(oomdoctor_here(*QUESTION, "--format", "sarif").stdout)["runs"][0]
    assert run["invocations"][0]["executionSuccessful"] is False
    assert "No such file" in run["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"]


@pytest.mark.parametrize("form", ["text", "markdown", "html"])
def test_people_read_standard_error(oomdoctor_here: Run, form: str) -> None:
    """Formats for people have no page of an error."""
    ended = oomdoctor_here(*QUESTION, "--format", form)

    assert (ended.returncode, ended.stdout) == (2, "")
    assert MESSAGE in ended.stderr


def test_an_interrupt_within_another_error_is_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What CPython 3.11 makes of an interrupt while it makes a class is no bug of ours."""

    def interrupted(**_: object) -> None:
        try:
            raise KeyboardInterrupt  # noqa: TRY301 - as a signal's handler does
        except KeyboardInterrupt as interrupt:
            raise RuntimeError("Error calling __set_name__ on 'Field' instance") from interrupt

    monkeypatch.setattr("oomdoctor.cli.app", interrupted)
    assert main([]) == EXIT_INTERRUPTED
    assert capsys.readouterr().err == "interrupted\n"
