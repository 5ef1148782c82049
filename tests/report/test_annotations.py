"""Annotations of GitHub Actions, read back as its runner reads a job's output."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import check_documents
import pytest
from clock import within
from diagnosis_documents import out_of_memory
from documents import gpt2, nothing_fits
from every_format import COMMANDS, SAMPLES, rendered, wicked
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from lint_documents import BROKEN, LOSS, UNDECODABLE, clean, many, mistakes

from oomdoctor.report.github import command
from oomdoctor.report.issues import Issue
from oomdoctor.report.plain_text import visible
from oomdoctor.results import Document

pytestmark = pytest.mark.usefixtures("repository")


@dataclass
class Command:
    """What the runner takes a line for."""

    name: str
    properties: dict[str, str]
    data: str


def parsed(line: str) -> Command | None:
    """A line as the runner reads it: `::name key=value,key=value::data`, with its escapes undone."""
    match = re.match(r"\s*::([^ :]+)(?: (.*?))?::(.*)\Z", line, re.DOTALL)
    if match is None:
        assert "##[" not in line
        assert not line.lstrip().startswith("::")
        return None
    pairs = [pair.split("=", 1) for pair in (match[2] or "").split(",") if pair]
    return Command(match[1], {key: unescaped(value) for key, value in pairs}, unescaped(match[3]))


def unescaped(text: str) -> str:
    """Undo what the runner's documentation says commands escape."""
    escapes = {"%0D": "\r", "%0A": "\n", "%3A": ":", "%2C": ",", "%25": "%"}
    return re.sub("|".join(escapes), lambda found: escapes[found[0]], text)


def annotations(text: str) -> list[Command]:
    """The commands of a report."""
    assert text.endswith("\n")
    return [found for found in map(parsed, text.removesuffix("\n").split("\n")) if found is not None]


def test_lint() -> None:
    """Findings are annotations of their severity at their place, worst first, and the sum is a line of its own."""
    text = rendered(mistakes(), "github")
    found = annotations(text)
    assert [command.name for command in found] == ["error", "error", "warning", "notice"]
    assert found[0].properties == {
        "file": "train/loop.py",
        "line": "42",
        "endLine": "42",
        "col": "9",
        "endColumn": "28",
        "title": "OOM102 loss-keeps-graph",
    }
    assert found[0].data == "`losses` keeps the graph of every step alive\nhelp: append `loss.item()`"
    assert found[1].properties == {"file": "train/old.py", "line": "3", "col": "7", "title": "not linted"}
    assert text.splitlines()[-1].startswith("Found 3 findings (1 error, 1 warning, 1 note) in 12 files.")
    assert rendered(clean(), "github") == "No findings in 12 files.\n"


def test_notebook_has_no_line_in_its_file() -> None:
    """What is in a cell is annotated at the file, and the text says where."""
    found = annotations(rendered(mistakes(unreadable=(UNDECODABLE,)), "github"))
    note = next(command for command in found if command.name == "notice")
    assert note.properties == {"file": "notebooks/fine tune.ipynb", "title": "OOM202 loss-not-divided"}
    assert note.data.startswith("cell 7, 3:5: `loss` is not divided")
    assert found[1].data == "cell 2: is no notebook"


def test_columns_are_given_within_one_line_only() -> None:
    """GitHub refuses columns of an annotation that spans lines."""
    (found,) = annotations(rendered(mistakes(replace(LOSS, end_line=44), unreadable=()), "github"))
    assert {"line": "42", "endLine": "44"}.items() <= found.properties.items()
    assert not {"col", "endColumn"} & set(found.properties)


def test_path_is_from_the_repository(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the command ran, a path is from the repository's root, or from the job's workspace."""
    (repository / "deep" / "er").mkdir(parents=True)
    monkeypatch.chdir(repository / "deep" / "er")
    absolute = str(repository / "x.py")
    findings = [replace(LOSS, path=path) for path in ("x.py", "../y.py", absolute, "/elsewhere/z.py")]
    text = rendered(mistakes(*findings, unreadable=()), "github")
    files = [command.properties["file"] for command in annotations(text)]
    assert files == ["deep/er/x.py", "deep/y.py", "x.py", "/elsewhere/z.py"]
    monkeypatch.setenv("GITHUB_WORKSPACE", str(repository.parent))
    assert annotations(rendered(mistakes(), "github"))[0].properties["file"] == "repository/deep/er/train/loop.py"


def test_ten_of_a_kind() -> None:
    """Of each kind the first ten are annotated, as GitHub shows no more, and one line counts the others."""
    text = rendered(many(100), "github")
    names = [command.name for command in annotations(text)]
    assert names == ["error"] * 10 + ["warning"] * 10 + ["notice"] * 10
    assert "\nNot annotated, since GitHub shows 10 of a kind: 23 errors, 23 warnings, 24 notices more.\n" in text
    assert "Not annotated" not in rendered(many(30), "github")


def test_ten_thousand_findings() -> None:
    """Ten thousand findings take a moment and thirty lines."""
    document = many(10_000)
    with within(2):
        text = rendered(document, "github")
    assert text.count("\n") == 32


def test_diagnosis() -> None:
    """Memory that ran out is an error at the user's own line; ranks that died in the same line are one."""
    text = rendered(SAMPLES["diagnose"], "github")
    (found,) = annotations(text)
    assert (found.name, found.properties) == (
        "error",
        {"file": "train/loop.py", "line": "112", "title": "oomdoctor: out of memory"},
    )
    lines = found.data.split("\n")
    assert lines[0] == "GPU 0 ran out of memory in backward, step 412."
    assert lines[2].startswith("The batch is too large (likely): activations are 10.67 GiB")
    assert lines[-1].startswith("help: Halve the micro-batch")
    assert text.endswith("GPU 0 ran out of memory in backward, step 412.\n")


def test_diagnosis_without_a_line_of_the_users() -> None:
    """Where the user's line is not known the error is at its line of the log; of a snapshot alone it is nowhere."""
    document = out_of_memory()
    facts = replace(document.result.facts, user_line=None)
    (found, other) = annotations(rendered(out_of_memory(facts=facts), "github"))
    assert {"file": "train.log", "line": "20417"}.items() <= found.properties.items()
    assert other.properties["file"] == "train/loop.py"
    assert "rank 1" in other.data
    (alone,) = annotations(rendered(out_of_memory(facts=facts, occurrences=()), "github"))
    assert alone.properties == {"title": "oomdoctor: out of memory"}


@pytest.mark.parametrize("name", ["diagnose, not memory", "diagnose, nothing"])
def test_diagnosis_of_something_else(name: str) -> None:
    """Where memory did not run out there is a notice."""
    (found,) = annotations(rendered(SAMPLES[name], "github"))
    assert (found.name, found.properties) == ("notice", {"title": "oomdoctor diagnose"})


def test_probe() -> None:
    """An answer is a notice at the file, no answer an error, and what to know before relying on it a warning."""
    (found,) = annotations(rendered(SAMPLES["probe"], "github"))
    assert (found.name, found.properties["file"]) == ("notice", "train/model.py")
    assert found.data.startswith("micro-batch 19 fits; 20 runs out in backward, iteration 2.\nrecommended: 18,")
    assert (
        "\nTo reach a target batch of 256: accumulation_steps=14, 14 micro-batches: 4 of 19, 10 of 18\n" in found.data
    )
    (failed,) = annotations(rendered(nothing_fits(), "github"))
    assert (failed.name, failed.properties) == ("error", {"title": "oomdoctor probe gpt2"})
    assert failed.data.startswith("Nothing fits; loading the model runs out of memory.\nThe weights alone exceed")
    doubtful = annotations(rendered(gpt2(stable=False, warnings=("x, y: z",)), "github"))
    assert [(command.name, command.data) for command in doubtful[:2]] == [
        ("warning", "The memory of other processes moved during the probe, so another run may answer differently."),
        ("warning", "x, y: z."),
    ]


def test_check() -> None:
    """Each problem and each broken limit is an error at its target's file, worst entry first, and the sum a line."""
    text = rendered(SAMPLES["check"], "github")
    found = annotations(text)
    assert [(command.name, command.properties["file"], command.properties["title"]) for command in found] == [
        ("error", "train/vision.py", "oomdoctor check vision"),
        ("error", "train/model.py", "oomdoctor check pretrain on rtx-4090: min-micro-batch"),
        ("error", "train/model.py", "oomdoctor check pretrain on rtx-4090: baseline"),
    ]
    assert found[0].data.startswith("`train/vision.py` has no `make_batch`.\nhelp: add these lines:\n")
    assert found[1].data == (
        "micro-batch 6 fits, and at least 8 is asked for.\nmicro-batch 6 fits; 7 runs out in backward, iteration 2."
    )
    assert found[2].data.split("\n")[1] == "activations +412.00 MiB at micro-batch 8, +61 % in `encoder.layers.*`"
    assert text.endswith("\n2 of 3 entries did not pass: 1 in error, 1 failed.\n")
    assert rendered(SAMPLES["check, passed"], "github") == "1 entry passed.\n"


def test_check_of_targets_without_a_file() -> None:
    """A module or an example is annotated at the configuration, and a file from the configuration's folder."""
    entries = [
        check_documents.broken(target=target, limits=(check_documents.SMALL,), movements=())
        for target in ("gpt2", "pkg.module:build", "a/x.py", "../y.py:build(name='z.py')", "/elsewhere/z.py")
    ]
    document = check_documents.check(*entries, configuration="deep/oomdoctor.toml")
    files = [command.properties["file"] for command in annotations(rendered(document, "github"))]
    assert files == ["deep/oomdoctor.toml", "deep/oomdoctor.toml", "deep/a/x.py", "y.py", "/elsewhere/z.py"]


def test_check_that_passed() -> None:
    """What to know before relying on a verdict is a warning, and what moved without failing anything a notice."""
    entry = check_documents.passed(
        target="x.py", warnings=("profiled at 6, not at 8",), movements=(check_documents.WEIGHTS,)
    )
    found = annotations(rendered(check_documents.check(entry), "github"))
    assert [(command.name, command.properties["file"], command.data) for command in found] == [
        ("warning", "x.py", "Profiled at 6, not at 8."),
        ("notice", "x.py", "weights -1.00 MiB"),
    ]


@pytest.mark.parametrize("document", [check_documents.many(10_000), check_documents.endless(10_000)])
def test_check_of_ten_thousand(document: Document) -> None:
    """Of ten thousand entries, or limits of one, ten errors are annotated and the rest is counted."""
    text = rendered(document, "github")
    counted = Counter(found.name for found in annotations(text))
    assert counted == {"error": 10}
    assert "Not annotated, since GitHub shows 10 of a kind: " in text


@pytest.mark.parametrize("command_name", COMMANDS)
def test_hostile_text_is_text(command_name: str) -> None:
    """No text of a document begins a command, ends one or adds a property to one."""
    for found in annotations(rendered(wicked(command_name), "github")):
        assert found.name in ("error", "warning", "notice")
        assert set(found.properties) <= {"file", "line", "endLine", "col", "endColumn", "title"}
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", found.data)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@example("100%2C, %3A:", "%0A::error::%25\r\n%0D")
@given(st.text(max_size=50), st.text(max_size=50))
def test_any_text_reads_back(title: str, text: str) -> None:
    """What the runner reads is what was written, with what cannot be seen written out."""
    found = parsed(command(Issue("error", title, (text, "second"))))
    assert found is not None
    expected = "\n".join(filter(None, (visible(text), "second")))
    assert (found.name, found.properties, found.data) == ("error", {"title": visible(title)}, expected)


def test_unreadable_files_are_annotated() -> None:
    """A file that could not be linted is an error, with or without a line."""
    whole = replace(BROKEN, line=None, column=None)
    (found,) = annotations(rendered(clean(unreadable=(whole,)), "github"))
    assert (found.name, found.properties) == ("error", {"file": "train/old.py", "title": "not linted"})
