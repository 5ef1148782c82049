"""The documents, one a command."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from oomdoctor.codec import choices, type_hints
from oomdoctor.errors import UsageError
from oomdoctor.results.check import CheckResult
from oomdoctor.results.diagnosis import DiagnosisResult
from oomdoctor.results.fit import FitResult
from oomdoctor.results.frontier import FrontierResult
from oomdoctor.results.lint import LintResult
from oomdoctor.results.plan import Accumulation
from oomdoctor.results.prescribe import PrescribeResult, PrescribeStatus
from oomdoctor.results.probe import ProbeResult
from oomdoctor.results.verify import VerifyResult, VerifyVerdict

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMA_VERSION: Final = 1


class _Planless:
    """Base of the documents that have no plan: asked for one, they say that the file is another command's."""

    __slots__ = ()

    @property
    def plan(self) -> Accumulation:
        """Raise, since there is no plan.

        Raises:
            UsageError: Always.
        """
        raise UsageError("this result is not a probe's and has no plan", hint=_PLAN_HINT)


_PLAN_HINT = "give a file that `oomdoctor probe` wrote with `--json`"


ProbeStatus: TypeAlias = Literal["fits", "limited", "nothing_fits", "interrupted"]


@dataclass(frozen=True, slots=True)
class ProbeDocument:
    """The document of `oomdoctor probe`.

    Attributes:
        command: The command that wrote it.
        status: `fits` (a micro-batch fits), `limited` (one fits, and a limit that is not memory ended the search),
            `nothing_fits` or `interrupted` (the answer stands, and what follows it is missing in part or in whole).
        exit_code: What the command exited with.
        versions: Version by name: `oomdoctor`, `python`, `torch`, `cuda`.
        result: What the command found.
        schema_version: Version of this layout.
    """

    command: Literal["probe"]
    status: ProbeStatus
    exit_code: int
    versions: dict[str, str]
    result: ProbeResult
    schema_version: Literal[1] = SCHEMA_VERSION

    @property
    def plan(self) -> Accumulation:
        """Accumulation plan that reaches the target batch.

        Raises:
            NoAnswerError: Nothing fits, so that there is no plan.
        """
        return self.result.plan


@dataclass(frozen=True, slots=True)
class DiagnosisDocument(_Planless):
    """The document of `oomdoctor diagnose`.

    Attributes:
        command: The command that wrote it.
        status: `oom` (memory ran out), `not_oom` (what was found is something else) or `nothing_found`.
        exit_code: What the command exited with.
        versions: Version by name: `oomdoctor`, `python`.
        result: What the command found.
        schema_version: Version of this layout.
    """

    command: Literal["diagnose"]
    status: Literal["oom", "not_oom", "nothing_found"]
    exit_code: int
    versions: dict[str, str]
    result: DiagnosisResult
    schema_version: Literal[1] = SCHEMA_VERSION


@dataclass(frozen=True, slots=True)
class LintDocument(_Planless):
    """The document of `oomdoctor lint`.

    Attributes:
        command: The command that wrote it.
        status: `findings` (mistakes were found), `unreadable` (none was, and files could not be linted) or `clean`.
        exit_code: What the command exited with.
        versions: Version by name: `oomdoctor`, `python`.
        result: What the command found.
        schema_version: Version of this layout.
    """

    command: Literal["lint"]
    status: Literal["clean", "findings", "unreadable"]
    exit_code: int
    versions: dict[str, str]
    result: LintResult
    schema_version: Literal[1] = SCHEMA_VERSION


@dataclass(frozen=True, slots=True)
class CheckDocument:
    """The document of `oomdoctor check`.

    Attributes:
        command: The command that wrote it.
        status: The worst verdict: `passed`, `failed` (a limit is broken), `error` (a target is at fault) or
            `no_answer`.
        exit_code: What the command exited with.
        versions: Version by name: `oomdoctor`, `python`, `torch`, `cuda`.
        result: What the command found.
        schema_version: Version of this layout.
    """

    command: Literal["check"]
    status: Literal["passed", "failed", "error", "no_answer"]
    exit_code: int
    versions: dict[str, str]
    result: CheckResult
    schema_version: Literal[1] = SCHEMA_VERSION

    @property
    def plan(self) -> Accumulation:
        """Accumulation plan of the one entry.

        Raises:
            UsageError: It has several, each with a plan of its own, or its one entry has no answer.
            NoAnswerError: Nothing fits, so that there is no plan.
        """
        answers = [entry.probe for entry in self.result.entries]
        if len(answers) != 1:
            raise UsageError(
                f"this check has {len(answers)} entries, each with a plan of its own",
                hint="take that of one: `document.result.entries[0].probe.plan`",
            )
        if answers[0] is None:
            raise UsageError("the entry of this check has no answer, and so no plan", hint=_PLAN_HINT)
        return answers[0].plan


@dataclass(frozen=True, slots=True)
class FitDocument(_Planless):
    """The document of `oomdoctor gpus --fit`.

    Attributes:
        command: The command that wrote it.
        status: `fitted` (every card has an answer at all sizes) or `incomplete` (at some the target raised an error).
        exit_code: What the command exited with.
        versions: Version by name: `oomdoctor`, `python`, `torch`, `cuda`.
        result: What the command found.
        schema_version: Version of this layout.
    """

    command: Literal["gpus"]
    status: Literal["fitted", "incomplete"]
    exit_code: int
    versions: dict[str, str]
    result: FitResult
    schema_version: Literal[1] = SCHEMA_VERSION


@dataclass(frozen=True, slots=True)
class VerifyDocument(_Planless):
    """The document of `oomdoctor verify`.

    Attributes:
        command: The command that wrote it.
        status: The verdict.
        exit_code: What the command exited with.
        versions: Version by name: `oomdoctor`, `python`, `torch`.
        result: What the command found.
        schema_version: Version of this layout.
    """

    command: Literal["verify"]
    status: VerifyVerdict
    exit_code: int
    versions: dict[str, str]
    result: VerifyResult
    schema_version: Literal[1] = SCHEMA_VERSION


@dataclass(frozen=True, slots=True)
class PrescribeDocument(_Planless):
    """The document of `oomdoctor prescribe`.

    Attributes:
        command: The command that wrote it.
        status: `reached` or `not_reached` (the size that is needed), `measured` (none was asked for), `nothing_fits`,
            `not_written` (all is well but for the file that was asked for) or `interrupted` (some rows are missing).
        exit_code: What the command exited with.
        versions: Version by name: `oomdoctor`, `python`, `torch`, `cuda`.
        result: What the command found.
        schema_version: Version of this layout.
    """

    command: Literal["prescribe"]
    status: PrescribeStatus
    exit_code: int
    versions: dict[str, str]
    result: PrescribeResult
    schema_version: Literal[1] = SCHEMA_VERSION


@dataclass(frozen=True, slots=True)
class FrontierDocument(_Planless):
    """The document of `oomdoctor probe` over several sizes, or of one size that is searched at a fixed micro-batch.

    Attributes:
        command: `frontier`.
        status: `measured` (some cell has a size that fits), `nothing_fits`, or `incomplete` (at some sizes the target
            raised an error that is not about memory, so that those cells have no answer).
        exit_code: What the command exited with.
        versions: Version by name: `oomdoctor`, `python`, `torch`, `cuda`.
        result: What the command found.
        schema_version: Version of this layout.
    """

    command: Literal["frontier"]
    status: Literal["measured", "nothing_fits", "incomplete"]
    exit_code: int
    versions: dict[str, str]
    result: FrontierResult
    schema_version: Literal[1] = SCHEMA_VERSION


Document: TypeAlias = (
    ProbeDocument
    | DiagnosisDocument
    | LintDocument
    | CheckDocument
    | FitDocument
    | VerifyDocument
    | PrescribeDocument
    | FrontierDocument
)


class Interrupted(KeyboardInterrupt):
    """An interrupt of a command that had found something.

    Attributes:
        document: What it had found, with the status `interrupted`.
    """

    def __init__(self, document: Document) -> None:
        super().__init__()
        self.document = document


DOCUMENTS: Final[Mapping[str, type[Document]]] = MappingProxyType(
    {
        "probe": ProbeDocument,
        "diagnose": DiagnosisDocument,
        "lint": LintDocument,
        "check": CheckDocument,
        "fit": FitDocument,
        "verify": VerifyDocument,
        "prescribe": PrescribeDocument,
        "frontier": FrontierDocument,
    }
)
"""Documents by name: that of its folder in `oomdoctor.report` and of its file in `oomdoctor/schemas`.

A new document is a class here, its line in this table, and its folder of formats.
"""

COMMANDS: Final[Mapping[str, type[Document]]] = MappingProxyType(
    {str(choices(type_hints(kind)["command"])[0]): kind for kind in DOCUMENTS.values()}
)
"""Documents by the command that writes them."""
