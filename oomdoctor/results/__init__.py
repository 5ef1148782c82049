"""What commands found: frozen dataclasses that every report renders and that serialise to one JSON document each.

Bytes are integers in fields named `..._bytes`; what is unknown is None. The documents' names are a promise to others:
`oomdoctor/schemas/*.schema.json` state them, and a test holds the two together.
"""

from oomdoctor.results.code import SourceLine, TrainingPhase
from oomdoctor.results.diagnosis import (
    Cause,
    CauseId,
    Confidence,
    DiagnosisResult,
    Facts,
    MemoryDevice,
    MemoryTrend,
    NextStep,
    Occurrence,
    ProcessMemory,
    Remedy,
)
from oomdoctor.results.document import SCHEMA_VERSION, DiagnosisDocument, Document, LintDocument, ProbeDocument
from oomdoctor.results.lint import Concern, Finding, LintResult, Severity, Unreadable
from oomdoctor.results.probe import (
    Accumulation,
    Device,
    MicroBatch,
    Outcome,
    Phase,
    PhaseName,
    ProbeResult,
    Reason,
    Trial,
    UniformPlan,
)
from oomdoctor.results.snapshot import (
    Category,
    CategoryBytes,
    Composition,
    DifferingLine,
    Fragmentation,
    GrowingLine,
    LiveAllocation,
    MemoryLine,
    SnapshotComparison,
    SnapshotSummary,
    TimelinePoint,
)

__all__ = [
    "SCHEMA_VERSION",
    "Accumulation",
    "Category",
    "CategoryBytes",
    "Cause",
    "CauseId",
    "Composition",
    "Concern",
    "Confidence",
    "Device",
    "DiagnosisDocument",
    "DiagnosisResult",
    "DifferingLine",
    "Document",
    "Facts",
    "Finding",
    "Fragmentation",
    "GrowingLine",
    "LintDocument",
    "LintResult",
    "LiveAllocation",
    "MemoryDevice",
    "MemoryLine",
    "MemoryTrend",
    "MicroBatch",
    "NextStep",
    "Occurrence",
    "Outcome",
    "Phase",
    "PhaseName",
    "ProbeDocument",
    "ProbeResult",
    "ProcessMemory",
    "Reason",
    "Remedy",
    "Severity",
    "SnapshotComparison",
    "SnapshotSummary",
    "SourceLine",
    "TimelinePoint",
    "TrainingPhase",
    "Trial",
    "UniformPlan",
    "Unreadable",
]
