"""JUnit's XML."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from xml.etree import ElementTree as ET

from oomdoctor.report.plain_text import escape, visible

if TYPE_CHECKING:
    from oomdoctor.report.issues import Case, Group, Issue, Issues
    from oomdoctor.results.document import Document


# What XML 1.0 can hold, less what turns the direction of text.
_ILLEGAL: Final = re.compile(
    "[^\t\n\x20-\x7e\xa0-\u200d\u2010-\u2027\u202f-\u2065\u206a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)
# In a job's output GitHub's runner takes a line that begins with `::`, or has `##[`, for a command. Attributes have no
# line breaks, so that this is within text.
_COMMAND: Final = re.compile(r"^\s*:(?=:)|##\[", re.MULTILINE)
_LONGEST_BODY: Final = 10_000


def render(document: Document, found: Issues) -> str:
    """Return a suite for each group of issues as one XML document, with a newline at its end."""
    suites = [_suite(group) for group in found.groups]
    counted = ("tests", "failures", "errors")
    sums = {name: str(sum(int(suite.attrib[name]) for suite in suites)) for name in counted}
    root = ET.Element("testsuites", {"name": f"oomdoctor {document.command}", **sums})
    root.extend(suites)
    ET.indent(root)
    text = _COMMAND.sub(lambda found: f"{found[0][:-1]}&#{ord(found[0][-1])};", ET.tostring(root, encoding="unicode"))
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'


def _suite(group: Group) -> ET.Element:
    cases = [(issue.case, _outcome(issue)) for issue in group.issues if issue.case is not None]
    outcomes = [outcome for _, outcome in cases]
    counts = {"tests": len(cases), "failures": outcomes.count("failure"), "errors": outcomes.count("error")}
    made = ET.Element("testsuite", {"name": _line(group.name), **{name: str(n) for name, n in counts.items()}})
    made.set("skipped", "0")
    if group.properties:
        properties = ET.SubElement(made, "properties")
        for name, value in group.properties.items():
            ET.SubElement(properties, "property", {"name": _line(name), "value": _line(str(value))})
    made.extend(_case(case, outcome) for case, outcome in cases)
    return made


def _outcome(issue: Issue) -> str:
    """Return how a case ended: an issue without a rule is one that could not be judged, and a note fails nothing."""
    if issue.level in ("passed", "note"):
        return "passed"
    return "error" if issue.rule is None else "failure"


def _case(case: Case, outcome: str) -> ET.Element:
    made = ET.Element("testcase", {"classname": _line(case.group), "name": _line(case.name)})
    if outcome != "passed":
        kind = {"type": _line(case.kind)} if case.kind else {}
        ended = ET.SubElement(made, outcome, {"message": _line(case.message), **kind})
        ended.text = _text(case.body or case.message)
    elif case.message:
        ET.SubElement(made, "system-out").text = _text("\n".join(filter(None, (case.message, case.body))))
    return made


def _line(text: str) -> str:
    return _text(visible(text))


def _text(text: str) -> str:
    """Return lines of characters that XML 1.0 can hold; others are escaped as Python writes them."""
    cut = text if len(text) <= _LONGEST_BODY else f"{text[:_LONGEST_BODY]}..."
    return _ILLEGAL.sub(lambda found: escape(found[0]), cut)
