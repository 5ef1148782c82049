"""SARIF 2.1.0.

Paths are from the root of the repository, percent-encoded, below `%SRCROOT%`; columns count characters. A result is
known again by a fingerprint of what it is about, not of where it stands, so that it stays the same when lines move.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from oomdoctor.report.issues import repository_path
from oomdoctor.report.plain_text import visible

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oomdoctor.report.issues import Issue, IssueKind, Issues, Location
    from oomdoctor.results.document import Document


_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
_ROOT: Final = "%SRCROOT%"
_FINGERPRINT: Final = "oomdoctor/v1"
_LINK: Final = re.compile(r"\[(?=[^\]]*\]\()")
_LONGEST_SNIPPET: Final = 300


def render(document: Document, found: Issues) -> str:
    """Return the issues as a log of one run, as JSON with a newline at its end."""
    data = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [_run(document, found)]}
    return json.dumps(data, indent=2, allow_nan=False) + "\n"


def _run(document: Document, found: Issues) -> dict[str, Any]:
    index = {rule.id: number for number, rule in enumerate(found.rules)}
    seen: Counter[tuple[str, ...]] = Counter()
    ran = getattr(document, "error", None) is None
    invocation: dict[str, Any] = {"executionSuccessful": ran, "exitCode": document.exit_code}
    if notices := [_notice(issue) for issue in found if issue.rule is None and issue.level != "note"]:
        invocation["toolExecutionNotifications"] = notices
    return {
        "tool": {"driver": _driver(document, found.rules)},
        "automationDetails": {"id": f"oomdoctor/{document.command}/"},
        "invocations": [invocation],
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {_ROOT: {"description": {"text": "The root of the repository."}}},
        "results": [_result(issue, issue.rule, index, seen) for issue in found if issue.rule is not None],
        "properties": {"status": document.status, **found.properties},
    }


def _driver(document: Document, rules: Iterable[IssueKind]) -> dict[str, Any]:
    driver: dict[str, Any] = {"name": "oomdoctor", "rules": [_rule(rule) for rule in rules]}
    if version := visible(document.versions.get("oomdoctor", "")):
        driver["version"] = version
    return driver


def _rule(rule: IssueKind) -> dict[str, Any]:
    return {
        "id": visible(rule.id),
        "name": visible(rule.name),
        "shortDescription": _message((rule.name,)),
        "fullDescription": _message((rule.name,)),
        "help": _message(rule.help.splitlines()),
        "defaultConfiguration": {"level": rule.level},
        "properties": {"tags": list(rule.tags), "problem.severity": _SEVERITIES[rule.level]},
    }


_SEVERITIES: Final = {"error": "error", "warning": "warning", "note": "recommendation"}


def _result(issue: Issue, rule: str, index: dict[str, int], seen: Counter[tuple[str, ...]]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "ruleId": visible(rule),
        "ruleIndex": index[rule],
        "level": issue.level,
        "message": _message(issue.text_lines(with_subject=True)),
        "locations": [_location(issue.location)],
        "partialFingerprints": {_FINGERPRINT: _fingerprint((rule, *issue.identity), seen)},
    }
    if issue.related:
        made["relatedLocations"] = [
            {"id": number, **_location(location), "message": _message((text,))}
            for number, (location, text) in enumerate(issue.related, start=1)
        ]
    return made


def _fingerprint(identity: tuple[str, ...], seen: Counter[tuple[str, ...]]) -> str:
    """Return what a result is known again by; results that are alike are counted through."""
    seen[identity] += 1
    digest = hashlib.sha256("\0".join(identity).encode("utf-8", "replace")).hexdigest()
    return f"{digest[:32]}:{seen[identity]}"


def _notice(issue: Issue) -> dict[str, Any]:
    made: dict[str, Any] = {"level": issue.level, "message": _message(issue.text_lines(with_subject=True)[:1])}
    location = _location(issue.location)
    return {**made, "locations": [location]} if location else made


def _message(lines: Iterable[str]) -> dict[str, str]:
    """Return plain text; what a reader would take for a link is kept from being one."""
    return {"text": "\n".join(_LINK.sub(r"\\[", visible(line)) for line in lines if line) or "-"}


def _location(location: Location) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if location.path is not None:
        physical: dict[str, Any] = {"artifactLocation": artifact(location.path)}
        if location.line is not None and location.cell is None:
            physical["region"] = _region(location)
        made["physicalLocation"] = physical
    if location.name:
        made["logicalLocations"] = [{"fullyQualifiedName": visible(location.name)}]
    return made


def artifact(path: str) -> dict[str, str]:
    """Return a file: below the repository's root as a relative address, elsewhere as a whole one."""
    found = repository_path(path)
    address = quote(found.encode("utf-8", "replace"), safe="/")
    return {"uri": f"file://{address}"} if found.startswith("/") else {"uri": address, "uriBaseId": _ROOT}


def _region(location: Location) -> dict[str, Any]:
    numbers = {
        "startLine": location.line,
        "startColumn": location.column,
        "endLine": location.end_line,
        "endColumn": location.end_column,
    }
    made: dict[str, Any] = {name: max(number, 1) for name, number in numbers.items() if number is not None}
    if location.snippet:
        # Tabs stay, since this is the file's own text.
        parts = location.snippet[:_LONGEST_SNIPPET].split("\t")
        made["snippet"] = {"text": "\t".join(map(visible, parts))}
    return made
