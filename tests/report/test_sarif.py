"""SARIF, held to the schema that OASIS publishes and to what code scanning needs."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import jsonschema  # type: ignore[import-untyped]
import pytest
from check_documents import any_check, broken, check, endless
from check_documents import many as many_entries
from clock import within
from diagnosis_documents import any_diagnosis, out_of_memory
from documents import any_probe_document, gpt2
from every_format import COMMANDS, SAMPLES, rendered, wicked
from hostile_documents import HOSTILE
from hypothesis import HealthCheck, given, settings
from lint_documents import BROKEN, EVALUATION, LOSS, any_lint, clean, many, mistakes

from oomdoctor.results import Document, LintDocument, Severity

pytestmark = pytest.mark.usefixtures("repository")

SCHEMA = json.loads((Path(__file__).parent / "data" / "sarif-2.1.0.schema.json").read_text(encoding="utf-8"))
CHECKER = jsonschema.Draft4Validator(SCHEMA, format_checker=jsonschema.FormatChecker())


def log(document: Document) -> Any:
    """A document's log, which is valid."""
    read = json.loads(rendered(document, "sarif"))
    CHECKER.validate(read)
    return read


def run(document: Document) -> Any:
    """The one run of a document's log."""
    (found,) = log(document)["runs"]
    return found


def fingerprints(document: Document) -> list[str]:
    """The fingerprint of each result."""
    return [result["partialFingerprints"]["oomdoctor/v1"] for result in run(document)["results"]]


def test_the_schema_is_one_that_refuses() -> None:
    """The schema that the logs are held to refuses a log that is none."""
    read = log(mistakes())
    for change in ({"version": "2.0.0"}, {"runs": [{}]}, {"runs": [{**read["runs"][0], "results": [{}]}]}):
        assert not CHECKER.is_valid({**read, **change})


@pytest.mark.parametrize("name", [name for name in SAMPLES if "endless" not in name])
def test_samples_are_valid(name: str) -> None:
    """Every command's log is valid, names the tool, and says how its columns count."""
    found = run(SAMPLES[name])
    assert found["tool"]["driver"]["name"] == "oomdoctor"
    assert found["tool"]["driver"]["version"] == "0.1.0"
    assert found["columnKind"] == "unicodeCodePoints"
    assert found["automationDetails"]["id"] == f"oomdoctor/{SAMPLES[name].command}/"


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(any_lint | any_diagnosis | any_probe_document | any_check)
def test_any_document_is_valid(document: Document) -> None:
    """Whatever a document holds, its log is valid."""
    log(document)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:20])
def test_hostile_documents_are_valid(command: str, text: str) -> None:
    """Hostile text makes a valid log of a bounded size in which every character can be seen."""
    written = rendered(wicked(command, text), "sarif")
    CHECKER.validate(json.loads(written))
    assert len(written) < 1_000_000
    assert not re.search(r"\\u00[01][0-8bce]|\\u202[a-e]|\\u206[6-9]|\\ud8", written.replace("\\\\", ""))


# --- lint ------------------------------------------------------------------------------------------------------------


def test_finding() -> None:
    """A finding is a result with its rule, its level, its message and its place."""
    found = run(mistakes(LOSS))
    (result,) = found["results"]
    assert (result["ruleId"], result["ruleIndex"], result["level"]) == ("OOM102", 0, "error")
    assert result["message"]["text"] == "`losses` keeps the graph of every step alive\nhelp: append `loss.item()`"
    (place,) = result["locations"]
    assert place["physicalLocation"] == {
        "artifactLocation": {"uri": "train/loop.py", "uriBaseId": "%SRCROOT%"},
        "region": {
            "startLine": 42,
            "startColumn": 9,
            "endLine": 42,
            "endColumn": 28,
            "snippet": {"text": "        losses.append(loss)"},
        },
    }
    assert place["logicalLocations"] == [{"fullyQualifiedName": "Trainer.train"}]
    assert found["invocations"][0]["exitCode"] == 1


def test_rules_have_help_and_the_level_of_their_worst_finding() -> None:
    """Each rule that fired stands once, with words, help, its concern and the level of its worst finding."""
    note = replace(LOSS, severity=Severity.NOTE)
    found = run(mistakes(note, LOSS, note, EVALUATION))
    rules = found["tool"]["driver"]["rules"]
    assert [(rule["id"], rule["defaultConfiguration"]["level"]) for rule in rules] == [
        ("OOM101", "warning"),
        ("OOM102", "error"),
    ]
    assert rules[1]["properties"] == {"tags": ["pytorch", "memory"], "problem.severity": "error"}
    assert "`oomdoctor rule OOM102`" in rules[1]["help"]["text"]
    assert [rules[result["ruleIndex"]]["id"] for result in found["results"]] == ["OOM102"] * 3 + ["OOM101"]


def test_notebook_has_no_region() -> None:
    """A line of a cell is no line of the file, so it is in the message."""
    result = run(mistakes())["results"][0]
    assert "region" not in result["locations"][0]["physicalLocation"]
    assert result["message"]["text"].startswith("cell 7, 3:5: `loss` is not divided")
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "notebooks/fine%20tune.ipynb"


def test_unreadable_files_are_notifications() -> None:
    """A file that could not be linted is no result but a notification, with its place."""
    found = run(clean(unreadable=(BROKEN,)))
    assert found["results"] == []
    (notice,) = found["invocations"][0]["toolExecutionNotifications"]
    assert notice["message"]["text"] == "not linted: python 2: `print` without parentheses"
    assert notice["locations"][0]["physicalLocation"]["region"] == {"startLine": 3, "startColumn": 7}


def test_place_before_the_file_begins() -> None:
    """Lines and columns are counted from 1, whatever a saved document says."""
    (result,) = run(mistakes(replace(LOSS, line=0, column=0, end_line=0, end_column=0)))["results"]
    region = result["locations"][0]["physicalLocation"]["region"]
    assert [region[name] for name in ("startLine", "startColumn", "endLine", "endColumn")] == [1] * 4


def test_fingerprints_survive_moved_lines() -> None:
    """A finding keeps its fingerprint when lines move, it is indented or its words change; another has another."""
    moved = replace(LOSS, line=99, end_line=99, column=1, source=f"    {LOSS.source}", message="other words")
    kept = fingerprints(mistakes(LOSS))
    assert fingerprints(mistakes(moved)) == kept
    changes: list[dict[str, Any]] = [{"source": "x"}, {"path": "y.py"}, {"code": "OOM101"}, {"function": None}]
    assert all(fingerprints(mistakes(replace(LOSS, **change))) != kept for change in changes)


def test_fingerprints_tell_equal_lines_apart() -> None:
    """Two findings in equal lines have two fingerprints, by their order."""
    first, second = fingerprints(mistakes(LOSS, replace(LOSS, line=80)))
    assert first != second
    assert (first[:-2], first[-2:], second[-2:]) == (second[:-2], ":1", ":2")


def test_fingerprints_do_not_depend_on_the_directory(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same file has the same fingerprint from wherever it was linted."""
    kept = fingerprints(mistakes(LOSS))
    (repository / "train").mkdir()
    monkeypatch.chdir(repository / "train")
    assert fingerprints(mistakes(replace(LOSS, path="loop.py"))) == kept


@pytest.mark.parametrize(
    ("path", "uri"),
    [
        ("a b/100%.py", "a%20b/100%25.py"),
        ("na\u00efve.py", "na%C3%AFve.py"),
        ("c:x.py", "c%3Ax.py"),
        ("a#b?c.py", "a%23b%3Fc.py"),
        ("/elsewhere/a b.py", "file:///elsewhere/a%20b.py"),
        ("half\ud800.py", "half%3F.py"),
    ],
)
def test_paths_are_percent_encoded(path: str, uri: str) -> None:
    """A path is an address whose parts read back, below the root where it lies there."""
    artifact = run(mistakes(replace(LOSS, path=path)))["results"][0]["locations"][0]["physicalLocation"]
    found = artifact["artifactLocation"]
    assert found["uri"] == uri
    assert ("uriBaseId" in found) == (not path.startswith("/"))
    assert unquote(urlsplit(uri).path) == path.replace("\ud800", "?")


def test_no_text_becomes_a_link() -> None:
    """What SARIF takes for a link is kept from being one."""
    (result,) = run(mistakes(replace(LOSS, message="x[0] and [a](https://example.org)", help="")))["results"]
    assert result["message"]["text"] == "x[0] and \\[a](https://example.org)"


def test_ten_thousand_findings() -> None:
    """Ten thousand findings are ten thousand results, in seconds and megabytes."""
    document: LintDocument = many(10_000)
    with within(5):
        written = rendered(document, "sarif")
    assert len(written) < 20_000_000
    assert written.count('"ruleId"') == 10_000
    assert len(set(re.findall(r'"oomdoctor/v1": "(.*)"', written))) == 10_000


# --- the others ------------------------------------------------------------------------------------------------------


def test_diagnosis() -> None:
    """Memory that ran out is an error of its likeliest cause at the user's line, related to the line of the log."""
    found = run(SAMPLES["diagnose"])
    (result,) = found["results"]
    assert (result["ruleId"], result["level"]) == ("batch_too_large", "error")
    place = result["locations"][0]["physicalLocation"]
    assert (place["artifactLocation"]["uri"], place["region"]["startLine"]) == ("train/loop.py", 112)
    related = result["relatedLocations"][0]["physicalLocation"]
    assert (related["artifactLocation"]["uri"], related["region"]["startLine"]) == ("train.log", 20417)
    assert "Halve the micro-batch" in found["tool"]["driver"]["rules"][0]["help"]["text"]
    assert run(SAMPLES["diagnose, not memory"])["results"] == []
    assert run(SAMPLES["diagnose, nothing"])["results"] == []


def test_diagnosis_is_the_same_one_at_the_next_run() -> None:
    """Other numbers of the same shortage at the same line have the same fingerprint."""
    sample = out_of_memory()
    later = replace(sample.result.facts, step=900, free_bytes=0)
    assert fingerprints(out_of_memory(facts=later)) == fingerprints(sample)


def test_probe() -> None:
    """An answer is a note at the file that was probed; where nothing fits it is an error."""
    (result,) = run(SAMPLES["probe"])["results"]
    assert (result["ruleId"], result["level"]) == ("micro-batch", "note")
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "train/model.py"
    (failed,) = run(SAMPLES["probe, nothing fits"])["results"]
    assert (failed["ruleId"], failed["level"]) == ("nothing-fits", "error")
    assert failed["locations"] == [{"logicalLocations": [{"fullyQualifiedName": "pkg.module"}]}]
    notices = run(gpt2(stable=False))["invocations"][0]["toolExecutionNotifications"]
    assert notices[0]["message"]["text"].startswith("The memory of other processes moved")


def test_check() -> None:
    """Each broken limit is a result of its rule at its target's file; an entry without an answer is a notice."""
    found = run(SAMPLES["check"])
    assert [(result["ruleId"], result["level"]) for result in found["results"]] == [
        ("min-micro-batch", "error"),
        ("baseline", "error"),
    ]
    assert [rule["id"] for rule in found["tool"]["driver"]["rules"]] == ["min-micro-batch", "baseline"]
    for result in found["results"]:
        assert result["message"]["text"].startswith("pretrain on rtx-4090: ")
        place = result["locations"][0]["physicalLocation"]["artifactLocation"]
        assert place == {"uri": "train/model.py", "uriBaseId": "%SRCROOT%"}
    (notice,) = found["invocations"][0]["toolExecutionNotifications"]
    assert notice["message"]["text"] == "vision: `train/vision.py` has no `make_batch`."
    assert run(SAMPLES["check, passed"])["results"] == []


def test_check_finds_the_same_again() -> None:
    """A limit that is still broken, by other figures, is the same result; that of another entry is another."""
    entry = broken()
    worse = replace(entry, limits=tuple(replace(limit, found=2, text="micro-batch 2 fits") for limit in entry.limits))
    kept = fingerprints(check(entry))
    assert fingerprints(check(replace(worse, limits=worse.limits[:2]))) == kept
    assert not set(kept) & set(fingerprints(check(replace(entry, name="other"))))


def test_check_of_ten_thousand() -> None:
    """Ten thousand entries, or limits of one, are results each of its own, in megabytes."""
    for document, results in ((many_entries(10_000), 6668), (endless(10_000), 10_000)):
        written = rendered(document, "sarif")
        assert len(written) < 20_000_000
        assert len(set(re.findall(r'"oomdoctor/v1": "(.*)"', written))) == results
