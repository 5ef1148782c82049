"""JUnit's XML."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal
from xml.etree import ElementTree as ET

from oomdoctor.report.plain_text import escape, visible

if TYPE_CHECKING:
    from collections.abc import Sequence


# What XML 1.0 can hold, less what turns the direction of text.
_ILLEGAL: Final = re.compile(
    "[^\t\n\x20-\x7e\xa0-\u200d\u2010-\u2027\u202f-\u2065\u206a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)
# In a job's output GitHub's runner takes a line that begins with `::`, or has `##[`, for a command. Attributes have no
# line breaks, so that this is within text.
_COMMAND: Final = re.compile(r"^\s*:(?=:)|##\[", re.MULTILINE)
_LONGEST_BODY: Final = 10_000


@dataclass(frozen=True, slots=True)
class Case:
    """One thing that was looked at.

    Attributes:
        name: What it is called.
        group: What it belongs to; tools show it as a class.
        outcome: How it ended.
        kind: What sort of failure.
        message: The failure in one line; for one that passed, what it says.
        body: The failure at length.
    """

    name: str
    group: str
    outcome: Literal["passed", "failure", "error"] = "passed"
    kind: str = ""
    message: str = ""
    body: str = ""


@dataclass(frozen=True, slots=True)
class Suite:
    """Cases that belong together, and what is known about all of them."""

    name: str
    cases: Sequence[Case]
    properties: Sequence[tuple[str, str]] = ()


def report(name: str, suites: Sequence[Suite]) -> str:
    """The suites as one XML document with a newline at its end."""
    cases = [case for suite in suites for case in suite.cases]
    root = ET.Element("testsuites", {"name": _line(name), **_counts(cases)})
    root.extend(_suite(suite) for suite in suites)
    ET.indent(root)
    text = _COMMAND.sub(lambda found: f"{found[0][:-1]}&#{ord(found[0][-1])};", ET.tostring(root, encoding="unicode"))
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'


def _counts(cases: Sequence[Case]) -> dict[str, str]:
    outcomes = [case.outcome for case in cases]
    failures, errors = outcomes.count("failure"), outcomes.count("error")
    return {"tests": str(len(outcomes)), "failures": str(failures), "errors": str(errors)}


def _suite(suite: Suite) -> ET.Element:
    made = ET.Element("testsuite", {"name": _line(suite.name), **_counts(suite.cases), "skipped": "0"})
    if suite.properties:
        properties = ET.SubElement(made, "properties")
        for name, value in suite.properties:
            ET.SubElement(properties, "property", {"name": _line(name), "value": _line(value)})
    made.extend(_case(case) for case in suite.cases)
    return made


def _case(case: Case) -> ET.Element:
    made = ET.Element("testcase", {"classname": _line(case.group), "name": _line(case.name)})
    if case.outcome != "passed":
        kind = {"type": _line(case.kind)} if case.kind else {}
        ended = ET.SubElement(made, case.outcome, {"message": _line(case.message), **kind})
        ended.text = _text(case.body or case.message)
    elif case.message:
        ET.SubElement(made, "system-out").text = _text("\n".join(filter(None, (case.message, case.body))))
    return made


def _line(text: str) -> str:
    return _text(visible(text))


def _text(text: str) -> str:
    """Lines of characters that XML 1.0 can hold; others are escaped as Python writes them."""
    cut = text if len(text) <= _LONGEST_BODY else f"{text[:_LONGEST_BODY]}..."
    return _ILLEGAL.sub(lambda found: escape(found[0]), cut)
