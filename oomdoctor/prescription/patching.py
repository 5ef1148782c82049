"""The patch of a prescription: the user's file, edited, proven by a probe, and written where that was asked for."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oomdoctor.errors import NotApplicableError, OomdoctorError, UsageError
from oomdoctor.output import check_writable, write_atomically
from oomdoctor.remedies.catalogue import remedy
from oomdoctor.remedies.file_edit import diff_of, merged, patched
from oomdoctor.results.prescribe import Patch

if TYPE_CHECKING:
    from oomdoctor.prescription.measuring import Measuring
    from oomdoctor.prescription.search import Found
    from oomdoctor.remedies.file_edit import FileEdit
    from oomdoctor.target.reference import Reference

_OPTION: Final = "--write"
_NO_PATCH_OF_COMMANDS: Final = "the code is for the command's own files, and goes where it says"


@dataclass(frozen=True, slots=True)
class PatchFile:
    """Path of the patched file, and whether it may overwrite another.

    Attributes:
        path: The file.
        force: Whether one that exists is overwritten.
    """

    path: Path
    force: bool = False

    def check(self) -> None:
        """See before long work that it can be written.

        Raises:
            UsageError: It exists and may not be overwritten, or cannot be written.
        """
        if str(self.path) == "-":
            raise UsageError("`--write -` names no file", hint="the patch is printed; name a file to write it as well")
        check_writable(self.path, _OPTION)
        if self.path.is_file() and not self.force:
            raise UsageError(
                f"`{self.path}` exists, and `--write` overwrites nothing by itself",
                hint="name a new file, or overwrite this one with `--force`",
            )

    def write(self, text: str) -> None:
        """Write the patched file, whole or not at all.

        Raises:
            UsageError: It cannot be written, or has come to exist meanwhile and may not be overwritten.
        """
        self.check()
        write_atomically(self.path, text, _OPTION)


@dataclass(frozen=True, slots=True)
class Prescription:
    """The prescribed remedies as code.

    Attributes:
        edit: The code by place; None where nothing is prescribed.
        patch: The same as a proven patch; None where there is none.
        problem: Why there is none; None where there is one or nothing is prescribed.
        unwritten: Why the patch was not written although that was asked for; None where it was, or no patch is there.
    """

    edit: FileEdit | None = None
    patch: Patch | None = None
    problem: str | None = None
    unwritten: str | None = None


def has_patch(reference: Reference | None) -> bool:
    """Return whether a patch can be made of a target: of a file, and of no command, module or name on a hub."""
    return reference is not None and reference.path is not None


def why_no_patch(reference: Reference) -> str:
    """Return why no patch can be made of a target that is no file."""
    writes = f"; `oomdoctor init '{reference.text}' > model.py` writes this one" if reference.hub else ""
    return f"`{reference.location}` is a {'name' if reference.hub else 'module'}, and patches are made of files{writes}"


def prescription_of(
    measuring: Measuring, found: Found, reference: Reference | None, write: PatchFile | None
) -> Prescription:
    """Return what is prescribed as code and as a patch, which is probed and written.

    Args:
        measuring: Probes the patched copy as it has probed the rows.
        found: What the search found.
        reference: The target; None for a command.
        write: Where the patched file goes; None to write none.
    """
    edit = _edit(measuring, found)
    if edit is None:
        return Prescription()
    if reference is None or reference.path is None:
        return Prescription(edit, problem=_NO_PATCH_OF_COMMANDS if reference is None else why_no_patch(reference))
    path = Path(reference.path)
    try:
        source = path.read_bytes().decode("utf-8")
        after = patched(source, edit, reference.attribute or "build_model", measuring.optimizer)
        maximum = _proven(measuring, found, reference, after)
    except NotApplicableError as error:
        return Prescription(edit, problem=error.message)
    except (OSError, UnicodeDecodeError) as error:
        problem = f"a patched copy beside `{reference.location}` cannot be made: {error}"
        return Prescription(edit, problem=problem)
    unwritten = None
    try:
        if write is not None:
            write.write(after)
    except UsageError as error:  # the rows took long, and are of use all the same
        write, unwritten = None, error.message
    written = None if write is None else str(write.path)
    patch = Patch(reference.location, diff_of(reference.location, source, after), maximum, written)
    return Prescription(edit, patch, unwritten=unwritten)


def _edit(measuring: Measuring, found: Found) -> FileEdit | None:
    """Return what is prescribed as an edit; None where nothing is."""
    if found.chosen is None:
        return None
    names = found.chosen.remedies
    applied = [change.edit for change in measuring.runs[names].changes]
    return merged([*(remedy(name).edit() for name in names), *applied])


def _proven(measuring: Measuring, found: Found, reference: Reference, after: str) -> int:
    """Return the maximum of a patched copy, which is that of what is prescribed.

    Raises:
        NotApplicableError: The copy fails, or has another maximum.
        OSError: The copy cannot be made.
    """
    path = Path(reference.path or "")
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, prefix=f"{path.stem}_prescribed_", suffix=".py", encoding="utf-8", newline=""
    ) as copy:
        copy.write(after)
        copy.flush()
        answer = measuring.again(replace(measuring.request, target=_renamed(reference, copy.name)))
    if isinstance(answer, OomdoctorError):
        raise NotApplicableError(f"the patched copy fails: {answer.message}")
    maximum, expected = answer.result.micro_batch.maximum, found.chosen.maximum if found.chosen else 0
    if maximum != expected:
        raise NotApplicableError(f"the patched copy has a maximum of {maximum}, and what is prescribed {expected}")
    return maximum


def _renamed(reference: Reference, path: str) -> str:
    call = reference.attribute or ""
    arguments = f"({reference.arguments})" if reference.arguments is not None else ""
    return f"{path}:{call}{arguments}" if call else path
