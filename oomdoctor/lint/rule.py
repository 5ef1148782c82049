"""A rule: what it is called, what it says, and what it gives where it fires."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from oomdoctor.lint.flow.events import Event, Run
from oomdoctor.lint.module import Module
from oomdoctor.lint.source import Edit
from oomdoctor.results import Concern, Severity


@dataclass(frozen=True, slots=True)
class Hit:
    """A place where a rule fires.

    Attributes:
        node: Node to point at.
        module: The file that it lies in.
        message: The mistake, with the names that the user gave; lower case, no full stop.
        help: The code to write instead, in one sentence.
        severity: Severity, if it differs from the rule's own.
        edits: Changes that put it right without changing what else the program does; empty where there are none.
    """

    node: ast.AST
    module: Module
    message: str
    help: str
    severity: Severity | None = None
    edits: tuple[Edit, ...] = ()

    @classmethod
    def at(
        cls,
        event: Event,
        message: str,
        *,
        help: str,  # noqa: A002 - the field's name
        severity: Severity | None = None,
        edits: tuple[Edit, ...] = (),
    ) -> Hit:
        """A hit where an event is."""
        return cls(event.node, event.module, message, help, severity, edits)


@dataclass(frozen=True, slots=True)
class Subject:
    """A file to check, with all runs that begin in it.

    Attributes:
        module: The file.
        runs: Runs of its entries, with calls into the file itself and its repository followed.
    """

    module: Module
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """A mistake that lint looks for, with its texts and its check.

    Attributes:
        code: Code, such as `OOM101`.
        name: Name, such as `evaluation-keeps-graph`; lower case with hyphens.
        severity: Severity of a hit that has none of its own.
        concern: Cost of the mistake: memory, a wrong result, or time.
        summary: Line for lists, lower case, no full stop.
        explanation: Code that the rule looks for, and code that it passes over; Markdown.
        reason: Why that is bad, with what PyTorch does; Markdown.
        bad: A short training script in which it fires; runs as it stands but for its data.
        good: The same without the mistake: nothing fires.
        references: Addresses of documentation or issues that say so.
        words: The rule can only fire in a file that has at least one of these words in its text.
        check: Gives each place where it fires.
        default: Whether it is on unless selected by name; off where it is right less than nine times in ten.
        fixable: Whether `--fix` makes `good` of `bad`.
    """

    code: str
    name: str
    severity: Severity
    concern: Concern
    summary: str
    explanation: str
    reason: str
    bad: str
    good: str
    references: tuple[str, ...]
    words: tuple[str, ...]
    check: Callable[[Subject], Iterator[Hit]]
    default: bool = True
    fixable: bool = False

    @property
    def fixed(self) -> str | None:
        """Text of `bad` after `--fix`; None where no fix is safe."""
        return self.good if self.fixable else None


def read_rules(*checks: Callable[[Subject], Iterator[Hit]]) -> tuple[Rule, ...]:
    """Return the rules of these checks, each with the texts of the Markdown file in `rules/` that has the check's name.

    Raises:
        ValueError: A Markdown file lacks a field or a section.
    """
    return tuple(_read_rule(Path(__file__).with_name("rules") / f"{check.__name__}.md", check) for check in checks)


def _read_rule(path: Path, check: Callable[[Subject], Iterator[Hit]]) -> Rule:
    head, *sections = path.read_text(encoding="utf-8").split("\n\n## ")
    title, *lines = head.replace("\n\n", "\n").splitlines()
    fields = dict(line.removeprefix("- ").split(": ", 1) for line in lines)
    bodies = dict(section.split("\n\n", 1) for section in sections)
    _, code, name = title.split()
    try:
        return Rule(
            code=code,
            name=name,
            severity=Severity(fields["severity"]),
            concern=Concern(fields["concern"]),
            summary=fields["summary"],
            explanation=bodies["What it does"].strip(),
            reason=bodies["Why that is bad"].strip(),
            bad=_code(bodies["Bad"]),
            good=_code(bodies["Good"]),
            references=tuple(re.findall(r"<(.+?)>", bodies["References"])),
            words=tuple(re.findall(r"`(.+?)`", fields["words"])),
            check=check,
            default={"on": True, "off": False}[fields["default"]],
            fixable={"yes": True, "no": False}[fields["fixable"]],
        )
    except KeyError as missing:
        raise ValueError(f"{path}: it lacks {missing}, or `default` is not on or off, or `fixable` yes or no") from None


def _code(section: str) -> str:
    """Return the script in a fenced block."""
    return section.strip().removeprefix("```python\n").removesuffix("```")
