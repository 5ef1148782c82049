"""The one JSON document that each command writes and that every report renders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from oomdoctor.results.diagnosis import DiagnosisResult
from oomdoctor.results.lint import LintResult
from oomdoctor.results.probe import ProbeResult

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class ProbeDocument:
    """What `oomdoctor probe` writes.

    Attributes:
        command: `probe`.
        status: `fits` (a micro-batch fits), `limited` (one fits, and a limit that is not memory ended the search) or
            `nothing_fits`.
        exit_code: What the command exited with.
        versions: Version by name: `oomdoctor`, `python`, `torch`, `cuda`.
        result: What the command found.
    """

    command: Literal["probe"]
    status: Literal["fits", "limited", "nothing_fits"]
    exit_code: int
    versions: dict[str, str]
    result: ProbeResult
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True)
class DiagnosisDocument:
    """What `oomdoctor diagnose` writes.

    Attributes:
        command: `diagnose`.
        status: `oom` (memory ran out), `not_oom` (what was found is something else) or `nothing_found`.
        exit_code: What the command exited with.
        versions: Version by name: `oomdoctor`, `python`.
        result: What the command found.
    """

    command: Literal["diagnose"]
    status: Literal["oom", "not_oom", "nothing_found"]
    exit_code: int
    versions: dict[str, str]
    result: DiagnosisResult
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True)
class LintDocument:
    """What `oomdoctor lint` writes.

    Attributes:
        command: `lint`.
        status: `findings` (mistakes were found), `unreadable` (none was, and files could not be linted) or `clean`.
        exit_code: What the command exited with.
        versions: Version by name: `oomdoctor`, `python`.
        result: What the command found.
    """

    command: Literal["lint"]
    status: Literal["clean", "findings", "unreadable"]
    exit_code: int
    versions: dict[str, str]
    result: LintResult
    schema_version: int = SCHEMA_VERSION


Document: TypeAlias = ProbeDocument | DiagnosisDocument | LintDocument
