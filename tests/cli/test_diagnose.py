"""`oomdoctor diagnose` as a user runs it: what goes in, what comes out, and the exit code."""

from __future__ import annotations

import json
import lzma
import pickle
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from running import INVOCATIONS, Run, run_command

from oomdoctor.results.document import COMMANDS

MESSAGE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 1 has a total capacity of 23.64 GiB "
    "of which 1.25 GiB is free. Including non-PyTorch memory, this process has 22.38 GiB memory in use. Of the "
    "allocated memory 21.50 GiB is allocated by PyTorch, and 390.50 MiB is reserved by PyTorch but unallocated. If "
    "reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
    "fragmentation."
)
LOG = f"""\
step 40 loss 2.31
Traceback (most recent call last):
  File "/home/user/train.py", line 31, in <module>
    loss.backward()
  File "/venv/lib/python3.12/site-packages/torch/_tensor.py", line 626, in backward
    torch.autograd.backward(
{MESSAGE}
"""


def result(stdout: str) -> dict[str, Any]:
    """The result in a JSON document."""
    document = json.loads(stdout)
    assert document["command"] == "diagnose"
    found: dict[str, Any] = document["result"]
    return found


# --- what it says ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("invocation", INVOCATIONS)
def test_a_log_is_explained(invocation: str, tmp_path: Path) -> None:
    """A log tells what ran out, where, why, and what to change, in the terminal."""
    (tmp_path / "train.log").write_text(LOG)
    ended = run_command(["diagnose", "train.log"], cwd=tmp_path, invocation=invocation)
    assert (ended.returncode, ended.stderr) == (0, "")
    for said in (
        "GPU 1",
        "2.50 GiB",
        "/home/user/train.py:31",
        "loss.backward()",
        "batch is too large",
        "oomdoctor probe",
    ):
        assert said in ended.stdout


def test_facts_in_json(oomdoctor_here: Run, tmp_path: Path) -> None:
    """The JSON document has every number of the message in bytes under the names that others rely on."""
    (tmp_path / "train.log").write_text(LOG)
    found = result(oomdoctor_here("diagnose", "train.log", "--json").stdout)
    assert (found["is_oom"], found["device"]) == (True, "cuda")
    facts = found["facts"]
    assert facts["tried_bytes"] == 2684354560
    assert facts["total_bytes"] == 25383256719
    assert facts["gpu_index"] == 1
    assert facts["reserved_bytes"] == facts["allocated_bytes"] + facts["reserved_unallocated_bytes"]
    assert (facts["phase"], facts["user_line"]["line"], facts["step"]) == ("backward", 31, 40)
    assert found["causes"][0]["id"] == "batch_too_large"
    assert found["remedies"][0]["id"] == "smaller_micro_batch"
    assert found["occurrences"][0]["line"] == 7


def test_standard_input() -> None:
    """`-` reads what is piped in."""
    ended = subprocess.run(
        [sys.executable, "-m", "oomdoctor", "diagnose", "-", "--json"],
        input=LOG,
        capture_output=True,
        text=True,
        check=True,
    )
    assert result(ended.stdout)["sources"] == ["standard input"]


def test_several_ranks_are_one_failure(oomdoctor_here: Run, tmp_path: Path) -> None:
    """Of several ranks' logs the first that ran out counts, and the others are listed."""
    for rank in (0, 1):
        (tmp_path / f"rank{rank}.log").write_text(
            LOG.replace("GPU 1", f"GPU {rank}").replace("\n", f"\n[rank{rank}]: ")
        )
    found = result(oomdoctor_here("diagnose", "rank0.log", "rank1.log", "--json").stdout)
    assert [one["rank"] for one in found["occurrences"]] == [0, 1]
    assert found["facts"]["gpu_index"] == 0


def test_an_error_of_another_kind(oomdoctor_here: Run, tmp_path: Path) -> None:
    """What is no lack of memory is called that."""
    (tmp_path / "x.log").write_text("RuntimeError: CUDA error: device-side assert triggered\n")
    found = result(oomdoctor_here("diagnose", "x.log", "--json").stdout)
    assert (found["is_oom"], found["device"]) == (False, "none")
    assert found["causes"][0]["id"] == "not_oom"


def test_an_error_that_was_survived_is_not_the_end(oomdoctor_here: Run, tmp_path: Path) -> None:
    """Where an OOM was caught and printed, and the program died of something else, that counts."""
    caught = f"batch 64 does not fit: {MESSAGE.removeprefix('torch.OutOfMemoryError: ')}\n"
    later = LOG.split("torch.OutOfMemoryError", maxsplit=1)[0] + "IndexError: list index out of range\n"
    (tmp_path / "x.log").write_text(caught + later)
    found = result(oomdoctor_here("diagnose", "x.log", "--json").stdout)
    assert found["is_oom"] is False
    assert "IndexError" in found["occurrences"][0]["message"]
    (tmp_path / "x.log").write_text(caught + LOG)
    assert result(oomdoctor_here("diagnose", "x.log", "--json").stdout)["is_oom"] is True


def test_a_log_that_ends_in_our_own_report_has_one_error(oomdoctor_here: Run, tmp_path: Path) -> None:
    """What `oomdoctor run` printed below the error repeats it, and is not a second one."""
    (tmp_path / "train.log").write_text(LOG)
    (tmp_path / "both.log").write_text(LOG + oomdoctor_here("diagnose", "train.log").stdout)
    found = result(oomdoctor_here("diagnose", "both.log", "--json").stdout)
    assert len(found["occurrences"]) == 1


def test_a_kill_is_not_stated_as_a_fact(oomdoctor_here: Run, tmp_path: Path) -> None:
    """A killed process is likely, and not certainly, one that had too little memory."""
    (tmp_path / "x.log").write_text("RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.\n")
    assert "likely for want of host memory" in oomdoctor_here("diagnose", "x.log").stdout


# --- exit codes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "options", "code"),
    [
        (LOG, [], 0),
        (LOG, ["--fail-on-oom"], 1),
        ("RuntimeError: CUDA error: device-side assert triggered\n", ["--fail-on-oom"], 0),
        ("step 1 loss 2.3\nstep 2 loss 2.2\ndone\n", [], 3),
        ("", [], 3),
    ],
)
def test_exit_codes(oomdoctor_here: Run, tmp_path: Path, text: str, options: list[str], code: int) -> None:
    """0 where something was diagnosed, 1 where a gate was asked for, 3 where nothing was found."""
    (tmp_path / "x.log").write_text(text)
    ended = oomdoctor_here("diagnose", "x.log", *options)
    assert ended.returncode == code, ended.stderr
    assert ended.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere.log"], "no such file: `nowhere.log`"),
        (["-", "-"], "standard input is named twice"),
        (["empty"], "`empty` is an empty folder"),
        (["broken.pickle"], "broken.pickle"),
        (["report.json"], "report.json"),
        (["train.log", "--json", "--html"], "exclude each other"),
        (["train.log", "-o", "no/such/folder/x.md"], "cannot be written"),
        (["train.log", "-o", "train.log"], "is what is to be read"),
        (["saved.json"], "oomdoctor report saved.json"),
        (["train.log.xz"], "compressed with xz"),
        (["CUDA out of memory. Tried to allocate 2.00 GiB"], "oomdoctor diagnose -"),
        (["train\0.log"], "cannot be read"),
        ([], "missing argument"),
    ],
)
def test_bad_input(oomdoctor_here: Run, tmp_path: Path, arguments: list[str], said: str) -> None:
    """Input that cannot be read is refused with what, where and what to do, and nothing on standard output."""
    (tmp_path / "train.log").write_text(LOG)
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.pickle").write_bytes(pickle.dumps({"segments": [], "device_traces": []})[:9])
    (tmp_path / "train.log.xz").write_bytes(lzma.compress(LOG.encode()))
    (tmp_path / "saved.json").write_text('{"schema_version": 1, "command": "diagnose", "status": "oom"}')
    (tmp_path / "report.json").write_text('{"schema_version": 1, "written_by": "oomdoctor run", ')
    if any("\0" in argument for argument in arguments):
        from oomdoctor.diagnose.sources import sources
        from oomdoctor.errors import UsageError

        with pytest.raises(UsageError, match=said):
            sources(arguments)
        return
    ended = oomdoctor_here("diagnose", *arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


def test_options_of_a_report_are_data(oomdoctor_here: Run, tmp_path: Path) -> None:
    """Of the options in a report, which anybody may have written, a hint repeats those of the card alone, quoted."""
    report = {
        "schema_version": 1,
        "written_by": "oomdoctor run",
        "traceback": LOG,
        "argv": ["train.py", "--batch-size", "8"],
        "card_options": ["--gpu", "t4; touch taken", "--write", "/etc/passwd", "--reserve"],
    }
    (tmp_path / "report.json").write_text(json.dumps(report))
    ended = oomdoctor_here("diagnose", "report.json", "--json")
    assert ended.returncode == 0, ended.stderr
    hints = [remedy["how"] or "" for remedy in json.loads(ended.stdout)["result"]["remedies"]]
    probes = [hint for hint in hints if hint.startswith("oomdoctor ")]
    assert any(" --gpu 't4; touch taken' " in hint for hint in probes)
    assert not any("--write" in hint or "--reserve" in hint for hint in probes)


def test_an_empty_log_is_said_to_be_empty(oomdoctor_here: Run, tmp_path: Path) -> None:
    """Nothing can be found in an empty log: it is named, and how to have the error in it is told."""
    (tmp_path / "train.log").touch()
    ended = oomdoctor_here("diagnose", "train.log")
    assert (ended.returncode, ended.stderr) == (3, "")
    assert "No error was found" in ended.stdout
    assert "`train.log` is empty." in ended.stdout
    assert "errors go to standard error, which a log has only with `2>&1`" in ended.stdout
    assert "$ oomdoctor run -- python train.py" in ended.stdout


def test_what_is_no_text_is_said_to_be_none(oomdoctor_here: Run, tmp_path: Path) -> None:
    """Random bytes are named as no log; an error that stands among them is found all the same."""
    noise = random.Random(0).randbytes(5000)
    (tmp_path / "noise").write_bytes(noise)
    (tmp_path / "both").write_bytes(
        noise + b"\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    )
    none, one = (oomdoctor_here("diagnose", name) for name in ("noise", "both"))
    assert (none.returncode, one.returncode) == (3, 0)
    assert "`noise` is no text, in which no error is found." in none.stdout
    assert "is no text" not in one.stdout


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "latin-1", "gbk"])
def test_text_of_any_encoding_is_text(oomdoctor_here: Run, tmp_path: Path, encoding: str) -> None:
    """With colours, bells and progress bars, too."""
    line = "\x1b[32mstep 1\x1b[0m\r  5%|#####     | 1/20\x08\x07\r\n"
    (tmp_path / "train.log").write_text(("损失" if encoding == "gbk" else "é") + line * 50, encoding=encoding)
    assert json.loads(oomdoctor_here("diagnose", "train.log", "--json").stdout)["result"]["notes"] == []


def test_a_log_without_an_error_gets_a_next_step(oomdoctor_here: Run, tmp_path: Path) -> None:
    """A log in which nothing failed is not called empty, and how to have the error in it is told."""
    (tmp_path / "train.log").write_text("step 1 loss 2\n")
    ended = oomdoctor_here("diagnose", "train.log", "--json")
    found = json.loads(ended.stdout)["result"]
    assert found["notes"] == []
    assert [step["command"] for step in found["next_steps"]] == ["oomdoctor run -- python train.py"]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_saved_result_is_no_log(oomdoctor_here: Run, tmp_path: Path, command: str) -> None:
    """A result of any command is refused with the command that shows it, not searched for errors."""
    (tmp_path / "saved.json").write_text(json.dumps({"schema_version": 1, "command": command, "result": {}}))
    ended = oomdoctor_here("diagnose", "saved.json")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "`saved.json` is a saved result of oomdoctor, not a log" in ended.stderr
    assert "oomdoctor report saved.json" in ended.stderr


def test_a_device_without_an_end_is_refused(oomdoctor_here: Run) -> None:
    """`/dev/zero` is no log, and reading it would never end; `/dev/null` is an empty one."""
    ended = oomdoctor_here("diagnose", "/dev/zero")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "`/dev/zero` is a device, not a log" in ended.stderr
    assert oomdoctor_here("diagnose", "/dev/null").returncode == 3


def test_unreadable_file(oomdoctor_here: Run, tmp_path: Path) -> None:
    """A file that cannot be opened is refused with the system's reason."""
    (tmp_path / "loop").symlink_to("loop")
    ended = oomdoctor_here("diagnose", "loop")
    assert ended.returncode == 2
    assert "symbolic link" in ended.stderr


# --- formats ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ending", "begins"), [("json", "{"), ("md", "#"), ("html", "<!doctype html>"), ("txt", "\u250f")]
)
def test_the_ending_of_the_file_chooses(oomdoctor_here: Run, tmp_path: Path, ending: str, begins: str) -> None:
    """`-o FILE` writes the format that the file's ending names."""
    (tmp_path / "train.log").write_text(LOG)
    ended = oomdoctor_here("diagnose", "train.log", "-o", f"why.{ending}")
    assert (ended.returncode, ended.stdout) == (0, "")
    assert (tmp_path / f"why.{ending}").read_text(encoding="utf-8").lower().startswith(begins)


def test_dash_is_standard_output(oomdoctor_here: Run, tmp_path: Path) -> None:
    """`-o -` prints, and makes no file of that name."""
    (tmp_path / "train.log").write_text(LOG)
    assert oomdoctor_here("diagnose", "train.log", "-o", "-").stdout == oomdoctor_here("diagnose", "train.log").stdout
    assert not (tmp_path / "-").exists()


def test_a_saved_diagnosis_is_rendered_again(oomdoctor_here: Run, tmp_path: Path) -> None:
    """`oomdoctor report` prints a saved diagnosis as `diagnose` did."""
    (tmp_path / "train.log").write_text(LOG)
    oomdoctor_here("diagnose", "train.log", "-o", "why.json")
    assert oomdoctor_here("report", "why.json").stdout == oomdoctor_here("diagnose", "train.log").stdout
    page = oomdoctor_here("diagnose", "train.log", "--html").stdout
    assert oomdoctor_here("report", "why.json", "--html").stdout == page


def test_formats_that_other_programs_read(oomdoctor_here: Run, tmp_path: Path) -> None:
    """Annotations, JUnit and SARIF name the user's own line; the step's summary gets the Markdown."""
    (tmp_path / "train.log").write_text(LOG)
    summary = tmp_path / "summary.md"
    annotated = oomdoctor_here("diagnose", "train.log", "--format", "github", GITHUB_STEP_SUMMARY=str(summary)).stdout
    assert annotated.startswith("::error file=/home/user/train.py,line=31,title=oomdoctor%3A out of memory::GPU 1 ran ")
    assert summary.read_text() == oomdoctor_here("diagnose", "train.log", "--format", "markdown").stdout
    scanned = json.loads(oomdoctor_here("diagnose", "train.log", "--format", "sarif").stdout)
    place = scanned["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "file:///home/user/train.py"}
    assert place["region"]["startLine"] == 31
    assert oomdoctor_here("diagnose", "train.log", "-o", "why.xml").returncode == 0
    assert 'name="/home/user/train.py:31"><failure' in "".join(
        line.strip() for line in (tmp_path / "why.xml").read_text().splitlines()
    )


def test_hostile_text_is_shown_and_not_run(oomdoctor_here: Run, tmp_path: Path) -> None:
    """Markup and terminal escapes of a log reach no reader as such."""
    hostile = LOG.replace("loss.backward()", "<script>alert(1)</script>\x1b]0;x\x07\x1b[31m loss.backward()")
    (tmp_path / "train.log").write_text(hostile)
    assert "<script" not in oomdoctor_here("diagnose", "train.log", "--html").stdout.lower()
    assert "\x1b" not in oomdoctor_here("diagnose", "train.log").stdout
    outside_of_code = oomdoctor_here("diagnose", "train.log", "--markdown").stdout.split("```")[::2]
    assert not any("<script" in part for part in outside_of_code)


# --- what it does not do ---------------------------------------------------------------------------------------------


def test_torch_is_not_imported(tmp_path: Path) -> None:
    """A diagnosis needs no torch, in any part of it."""
    (tmp_path / "train.log").write_text(LOG)
    code = (
        "import sys\n"
        "from oomdoctor.cli import main\n"
        "assert main(['diagnose', 'train.log', '--html', '-o', 'x.html']) == 0\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True)


def test_a_hostile_pickle_does_not_run(oomdoctor_here: Run, tmp_path: Path) -> None:
    """A pickle that would run a command is refused by name, and the command did not run."""

    class Hostile:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            import os

            return os.system, (f"touch {tmp_path / 'ran'}",)

    (tmp_path / "x.pickle").write_bytes(pickle.dumps({"segments": [Hostile()]}))
    ended = oomdoctor_here("diagnose", "x.pickle")
    assert ended.returncode == 2
    assert "system" in ended.stderr
    assert not (tmp_path / "ran").exists()


# --- one line a file -------------------------------------------------------------------------------------------------


def test_short_prints_one_line_a_file(oomdoctor_here: Run, tmp_path: Path) -> None:
    """Each file is diagnosed by itself, in the order in which they are named, and told in one line."""
    (tmp_path / "a.log").write_text(LOG)
    (tmp_path / "b.log").write_text("step 1 loss 2\n")
    (tmp_path / "c.log").write_text("Traceback (most recent call last):\nValueError: no such column\n")
    ended = oomdoctor_here("diagnose", "--short", "a.log", "b.log", "c.log")
    assert ended.returncode == 0
    first, second, third = ended.stdout.splitlines()
    assert first == (
        "a.log: GPU 1 ran out of memory in backward, step 40: the batch is too large (likely); "
        "2.50 GiB asked for, 1.25 GiB of 23.64 GiB free, 21.50 GiB in tensors"
    )
    assert second == "b.log: No error was found"
    assert third.startswith("c.log: Not an out-of-memory error; ")
    assert "no such column" in third


def test_short_goes_on_behind_a_file_that_cannot_be_read(oomdoctor_here: Run, tmp_path: Path) -> None:
    """A file that is none of ours to read is told on standard error, and the exit code says so in the end."""
    (tmp_path / "packed.log").write_bytes(lzma.compress(LOG.encode()))
    (tmp_path / "a.log").write_text(LOG)
    ended = oomdoctor_here("diagnose", "--short", "packed.log", "a.log")
    assert ended.returncode == 2
    assert [line.partition(":")[0] for line in ended.stdout.splitlines()] == ["a.log"]
    assert "packed.log" in ended.stderr
    assert "xz" in ended.stderr


@pytest.mark.parametrize("missing", ["nofile.log", "empty"])
def test_short_goes_on_behind_what_is_not_there(oomdoctor_here: Run, tmp_path: Path, missing: str) -> None:
    """A missing file or an empty folder among several is told on standard error, and the others are read."""
    (tmp_path / "a.log").write_text(LOG)
    (tmp_path / "b.log").write_text("step 1 loss 2\n")
    (tmp_path / "empty").mkdir()
    ended = oomdoctor_here("diagnose", "--short", "a.log", missing, "b.log")
    assert ended.returncode == 2
    assert [line.partition(":")[0] for line in ended.stdout.splitlines()] == ["a.log", "b.log"]
    assert missing in ended.stderr
    (tmp_path / "all").write_text("")
    assert oomdoctor_here("diagnose", "--short", "a.log", missing, "-o", "all").returncode == 2
    assert (tmp_path / "all").read_text().startswith("a.log: GPU 1")


def test_short_writes_no_file_of_nothing(oomdoctor_here: Run, tmp_path: Path) -> None:
    """Where none of several files is there, each is told and no empty output is left."""
    ended = oomdoctor_here("diagnose", "--short", "x.log", "y.log", "-o", "all")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "x.log" in ended.stderr
    assert "y.log" in ended.stderr
    assert not (tmp_path / "all").exists()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["a.log", "b.log", "--fail-on-oom"], 1), (["b.log"], 3), (["a.log", "--json"], 2), (["a.log", "-o", "all"], 0)],
    ids=["gate", "nothing found", "two formats", "file"],
)
def test_short_has_the_exit_code_of_all_files(
    oomdoctor_here: Run, tmp_path: Path, arguments: list[str], code: int
) -> None:
    """A gate fails where any file ran out, and nothing is an answer where no file had one."""
    (tmp_path / "a.log").write_text(LOG)
    (tmp_path / "b.log").write_text("step 1 loss 2\n")
    assert oomdoctor_here("diagnose", "--short", *arguments).returncode == code
    assert (tmp_path / "all").is_file() == ("-o" in arguments)


def test_closed_standard_input_is_named(tmp_path: Path) -> None:
    """A log that should come from a closed standard input is an error of use, and no log without an error."""
    command = f"{sys.executable} -m oomdoctor diagnose - <&-"
    ended = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "standard input is closed" in ended.stderr
