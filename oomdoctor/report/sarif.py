"""SARIF 2.1.0.

Paths are from the root of the repository, percent-encoded, below `%SRCROOT%`; columns count characters. A result is
known again by a fingerprint of what it is about, not of where it stands, so that it stays the same when lines move.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias
from urllib.parse import quote

from oomdoctor.report.issues import repository_path
from oomdoctor.report.plain_text import visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from oomdoctor.results import Document


Level: TypeAlias = Literal["error", "warning", "note"]

_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
_ROOT: Final = "%SRCROOT%"
_FINGERPRINT: Final = "oomdoctor/v1"
_LINK: Final = re.compile(r"\[(?=[^\]]*\]\()")
_LONGEST_SNIPPET: Final = 300


@dataclass(frozen=True, slots=True)
class Region:
    """Where in a file: lines and columns from 1, the end's column the first one after it."""

    line: int
    column: int | None = None
    end_line: int | None = None
    end_column: int | None = None
    snippet: str | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """A place: a file, or a name where there is no file.

    Attributes:
        path: The file as the document gives it; None where there is none.
        region: Where in it; None for all of it.
        name: What it is in, such as a function or a reference.
    """

    path: str | None
    region: Region | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """What a result is one of.

    Attributes:
        id: Stable identifier.
        name: Words for it.
        help: What to do about it.
        level: How bad it is in general.
        tags: Keywords.
    """

    id: str
    name: str
    help: str
    level: Level
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """One result.

    Attributes:
        rule: Identifier of its rule.
        level: How bad it is.
        lines: What it says, line by line.
        place: Where.
        identity: What it is about, without line numbers; results that share it are counted through.
        related: Other places and what they are.
    """

    rule: str
    level: Level
    lines: tuple[str, ...]
    place: Place
    identity: tuple[str, ...]
    related: tuple[tuple[Place, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Notice:
    """Something about the run itself, such as a file that could not be read."""

    level: Level
    text: str
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """What one command found."""

    rules: Sequence[Rule]
    results: Iterable[Result]
    notices: Sequence[Notice] = ()
    properties: dict[str, object] = field(default_factory=dict)


def log(document: Document, run: Run) -> str:
    """The log of one command as JSON with a newline at its end."""
    data = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [_run(document, run)]}
    return json.dumps(data, indent=2, allow_nan=False) + "\n"


def _run(document: Document, run: Run) -> dict[str, Any]:
    index = {rule.id: number for number, rule in enumerate(run.rules)}
    seen: Counter[tuple[str, ...]] = Counter()
    invocation: dict[str, Any] = {"executionSuccessful": True, "exitCode": document.exit_code}
    if run.notices:
        invocation["toolExecutionNotifications"] = [_notice(notice) for notice in run.notices]
    return {
        "tool": {"driver": _driver(document, run.rules)},
        "automationDetails": {"id": f"oomdoctor/{document.command}/"},
        "invocations": [invocation],
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {_ROOT: {"description": {"text": "The root of the repository."}}},
        "results": [_result(result, index, seen) for result in run.results],
        "properties": {"status": document.status, **run.properties},
    }


def _driver(document: Document, rules: Iterable[Rule]) -> dict[str, Any]:
    driver: dict[str, Any] = {"name": "oomdoctor", "rules": [_rule(rule) for rule in rules]}
    if version := visible(document.versions.get("oomdoctor", "")):
        driver["version"] = version
    return driver


def _rule(rule: Rule) -> dict[str, Any]:
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


def _result(result: Result, index: dict[str, int], seen: Counter[tuple[str, ...]]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "ruleId": visible(result.rule),
        "ruleIndex": index[result.rule],
        "level": result.level,
        "message": _message(result.lines),
        "locations": [_location(result.place)],
        "partialFingerprints": {_FINGERPRINT: _fingerprint(result, seen)},
    }
    if result.related:
        made["relatedLocations"] = [
            {"id": number, **_location(place), "message": _message((text,))}
            for number, (place, text) in enumerate(result.related, start=1)
        ]
    return made


def _fingerprint(result: Result, seen: Counter[tuple[str, ...]]) -> str:
    identity = (result.rule, *result.identity)
    seen[identity] += 1
    digest = hashlib.sha256("\0".join(identity).encode("utf-8", "replace")).hexdigest()
    return f"{digest[:32]}:{seen[identity]}"


def _notice(notice: Notice) -> dict[str, Any]:
    made: dict[str, Any] = {"level": notice.level, "message": _message((notice.text,))}
    return made if notice.place is None else {**made, "locations": [_location(notice.place)]}


def _message(lines: Iterable[str]) -> dict[str, str]:
    """Plain text; what a reader would take for a link is kept from being one."""
    return {"text": "\n".join(_LINK.sub(r"\\[", visible(line)) for line in lines if line) or "-"}


def _location(place: Place) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if place.path is not None:
        physical: dict[str, Any] = {"artifactLocation": artifact(place.path)}
        if place.region is not None:
            physical["region"] = _region(place.region)
        made["physicalLocation"] = physical
    if place.name:
        made["logicalLocations"] = [{"fullyQualifiedName": visible(place.name)}]
    return made


def artifact(path: str) -> dict[str, str]:
    """A file: below the repository's root as a relative address, elsewhere as a whole one."""
    found = repository_path(path)
    address = quote(found.encode("utf-8", "replace"), safe="/")
    return {"uri": f"file://{address}"} if found.startswith("/") else {"uri": address, "uriBaseId": _ROOT}


def _region(region: Region) -> dict[str, Any]:
    numbers = {
        "startLine": region.line,
        "startColumn": region.column,
        "endLine": region.end_line,
        "endColumn": region.end_column,
    }
    made: dict[str, Any] = {name: max(number, 1) for name, number in numbers.items() if number is not None}
    if region.snippet:
        # Tabs stay, since this is the file's own text.
        parts = region.snippet[:_LONGEST_SNIPPET].split("\t")
        made["snippet"] = {"text": "\t".join(map(visible, parts))}
    return made
