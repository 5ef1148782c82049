"""JUnit's XML, held to Jenkins' schema of it."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
from check_documents import any_check, endless
from check_documents import many as many_entries
from clock import within
from diagnosis_documents import any_diagnosis
from documents import any_probe_document
from every_format import COMMANDS, SAMPLES, rendered, wicked
from hostile_documents import HOSTILE
from hypothesis import given, settings
from junit_schema import check
from lint_documents import DIVISION, LOSS, any_lint, clean, many, mistakes

from oomdoctor.results import Document


def suites(document: Document) -> ET.Element:
    """A document's report, which is valid, and whose counts are right."""
    root = ET.fromstring(rendered(document, "junit"))  # noqa: S314 - our own
    check(root)
    for element in (root, *root.findall("testsuite")):
        assert int(element.attrib["tests"]) == len(element.findall(".//testcase"))
        assert int(element.attrib["failures"]) == len(element.findall(".//failure"))
        assert int(element.attrib["errors"]) == len(element.findall(".//error"))
    return root


def properties(root: ET.Element) -> dict[str, str]:
    """All properties of a report."""
    return {found.attrib["name"]: found.attrib["value"] for found in root.iter("property")}


@pytest.mark.parametrize(
    "text",
    [
        "<testsuites><testsuite tests='1'/></testsuites>",
        "<testsuites><testcase name='x'/></testsuites>",
        "<testsuites><testsuite name='x' tests='0' failures='0' errors='0' when='x'/></testsuites>",
        "<testsuites>text</testsuites>",
        "<testsuites time='x'/>",
    ],
)
def test_the_schema_is_one_that_refuses(text: str) -> None:
    """The schema that the reports are held to refuses what is no report."""
    with pytest.raises(AssertionError):
        check(ET.fromstring(text))  # noqa: S314 - our own


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_are_valid(name: str) -> None:
    """Every command's report is valid, and at least one case is in it."""
    assert suites(SAMPLES[name]).find(".//testcase") is not None


@settings(max_examples=60, deadline=None)
@given(any_lint | any_diagnosis | any_probe_document | any_check)
def test_any_document_is_valid(document: Document) -> None:
    """Whatever a document holds, its report is valid."""
    suites(document)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:20])
def test_hostile_documents_are_valid(command: str, text: str) -> None:
    """Hostile text makes a valid report of a bounded size whose every character XML 1.0 has and a reader sees."""
    written = rendered(wicked(command, text), "junit")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]", written)
    assert len(written.encode()) < 200_000
    shape = [element.tag for element in suites(wicked(command, text)).iter()]
    assert shape == [element.tag for element in suites(wicked(command, "x")).iter()]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("text", ["::error::x", "first\n  ::error::x", "a ##[error]x"])
def test_no_line_is_a_command(command: str, text: str) -> None:
    """In a job of GitHub's no line of a report that is printed is a command of its own, and its text reads back."""
    written = rendered(wicked(command, text), "junit")
    for line in written.splitlines():
        assert not line.lstrip().startswith("::")
        assert "##[" not in line
    assert text.rsplit(maxsplit=1)[-1] in "".join(ET.fromstring(written).itertext())  # noqa: S314 - our own


def test_lint() -> None:
    """Each file is a suite and each finding a failed case; a note has passed, an unreadable file is an error."""
    root = suites(mistakes())
    assert [suite.attrib["name"] for suite in root] == [
        "notebooks/fine tune.ipynb",
        "train/loop.py",
        "not linted",
        "oomdoctor lint",
    ]
    assert (root.attrib["tests"], root.attrib["failures"], root.attrib["errors"]) == ("5", "2", "1")
    failure = root.find("testsuite[@name='train/loop.py']/testcase/failure")
    assert failure is not None
    assert failure.attrib == {"message": LOSS.message, "type": "OOM102"}
    assert failure.text == "train/loop.py:42:9\nlosses.append(loss)\nhelp: append `loss.item()`"
    note = root.find("testsuite/testcase/system-out")
    assert note is not None
    assert (note.text or "").startswith(DIVISION.message)
    assert properties(root)["files"] == "12"


def test_lint_that_found_nothing() -> None:
    """Where nothing was found one case has passed, since servers take a report without cases for a broken one."""
    root = suites(clean())
    assert [case.attrib["name"] for case in root.iter("testcase")] == ["all files"]
    assert (root.findtext(".//system-out") or "") == "No findings in 12 files."


def test_diagnosis() -> None:
    """Memory that ran out is a failed case named after the user's line; anything else has passed."""
    root = suites(SAMPLES["diagnose"])
    (case,) = root.iter("testcase")
    assert case.attrib["name"] == "train/loop.py:112"
    failure = case.find("failure")
    assert failure is not None
    assert failure.attrib["type"] == "batch_too_large"
    assert "Tried to allocate 1.92 GiB" in (failure.text or "")
    assert properties(root)["tried_bytes"] == str(1966 * 1024**2)
    for name in ("diagnose, not memory", "diagnose, nothing"):
        assert suites(SAMPLES[name]).attrib["failures"] == "0"


def test_probe() -> None:
    """A probe fails where nothing fits, and its numbers are properties."""
    root = suites(SAMPLES["probe"])
    assert root.attrib["failures"] == "0"
    assert {"maximum": "19", "recommended": "18", "steps": "14"}.items() <= properties(root).items()
    failed = suites(SAMPLES["probe, nothing fits"])
    assert (failed.attrib["failures"], properties(failed)["status"]) == ("1", "nothing_fits")


def test_check() -> None:
    """Each entry is a suite and each limit a case; an entry without an answer is an error."""
    root = suites(SAMPLES["check"])
    assert [suite.attrib["name"] for suite in root] == ["vision", "pretrain on rtx-4090", "finetune", "oomdoctor check"]
    assert (root.attrib["failures"], root.attrib["errors"]) == ("2", "1")
    cases = {
        case.attrib["name"]: [child.tag for child in case]
        for case in root.iterfind("testsuite[@name='pretrain on rtx-4090']/testcase")
    }
    assert cases == {
        "min-micro-batch": ["failure"],
        "baseline": ["failure"],
        "fits": ["system-out"],
        "max-accumulation-steps": ["system-out"],
    }
    assert "\nactivations +412.00 MiB at micro-batch 8" in (root.findtext(".//failure[@type='baseline']") or "")
    error = root.find("testsuite[@name='vision']/testcase/error")
    assert error is not None
    assert error.attrib == {"message": "`train/vision.py` has no `make_batch`", "type": "error"}
    assert (error.text or "").endswith("\nNameError: name 'x'")
    passed = properties(suites(SAMPLES["check, passed"]))
    assert {
        "verdict": "passed",
        "maximum": "32",
        "steps": "8",
        "gpu": "a100",
        "status": "passed",
    }.items() <= passed.items()


def test_check_of_ten_thousand() -> None:
    """Ten thousand entries are ten thousand suites, and ten thousand limits as many cases, in megabytes."""
    for document, cases in ((many_entries(10_000), 1 + 3334 * 4 + 6666), (endless(10_000), 10_001)):
        written = rendered(document, "junit")
        assert written.count("<testcase ") == cases
        assert len(written) < 15_000_000


def test_ten_thousand_findings() -> None:
    """Ten thousand findings are ten thousand cases, in seconds and megabytes."""
    document = many(10_000)
    with within(5):
        written = rendered(document, "junit")
    assert len(written) < 10_000_000
    assert written.count("<testcase ") == 10_001


def test_characters_that_xml_has_not_are_written_out() -> None:
    """A character that XML 1.0 cannot hold is there as Python writes it."""
    root = suites(mistakes(replace(LOSS, message="a\x00b\ufffe\ud800")))
    assert root.find(".//failure[@message='a\\x00b\\ufffe\\ud800']") is not None
