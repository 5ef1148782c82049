"""A command that failed, in the formats that programs read; people read the error on standard error."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from oomdoctor.errors import EXIT_NO_ANSWER, OomdoctorError
from oomdoctor.report.issues import Case, Group, Issue, Issues
from oomdoctor.report.plain_text import sentence, visible

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMATS: Final = ("json", "github", "junit", "sarif")
"""Formats that a failure has."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure in the frame of a document.

    Attributes:
        command: The command that failed.
        error: What it ended with.
        versions: Version by name.
    """

    command: str
    error: OomdoctorError
    versions: Mapping[str, str]

    @property
    def status(self) -> str:
        """Return `no_answer` where nothing is wrong with the question, else `error`."""
        return "no_answer" if self.error.exit_code == EXIT_NO_ANSWER else "error"

    @property
    def exit_code(self) -> int:
        """Return the exit code of the command."""
        return self.error.exit_code

    def result(self) -> dict[str, Any]:
        """Return what stands in the JSON document in place of a result."""
        error = self.error
        return {"problem": {"message": error.message, "hint": error.hint, "details": error.details}}

    def issues(self) -> Issues:
        """Return the error as an issue of the run, of no file."""
        error, title = self.error, f"oomdoctor {self.command}"
        help_lines = (error.hint or "").splitlines()
        lines = (sentence(error.message), *(f"help: {line}" for line in help_lines[:1]), *help_lines[1:])
        body = "\n".join(visible(line) for line in (*lines, *(error.details or "").splitlines()) if line)
        issue = Issue("error", title, lines, case=Case("answer", title, self.status, error.message, body))
        return Issues(sentence(error.message), [Group(title, [issue], self.versions)], properties=dict(self.result()))


def render(failure: Failure, form: str) -> str:
    """Return a failure as GitHub's annotations, JUnit's XML or SARIF."""
    # They ask a document for its frame alone.
    return str(import_module(f"oomdoctor.report.{form}").render(failure, failure.issues()))
