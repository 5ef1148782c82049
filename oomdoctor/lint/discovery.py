"""From the paths on the command line to the files that are linted, in a stable order."""

from __future__ import annotations

import difflib
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oomdoctor.errors import UsageError
from oomdoctor.lint.gitignore import Ignores, repository_of
from oomdoctor.lint.globs import Globs
from oomdoctor.results.lint import Unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oomdoctor.lint.settings import Settings

STANDARD_INPUT: Final = "-"
ENDINGS: Final = (".py", ".ipynb")
"""What the name of a file ends with that is looked for in a folder; a file that is named outright may have any."""

SKIPPED_FOLDERS: Final = frozenset({
    ".bzr", ".direnv", ".eggs", ".git", ".git-rewrite", ".hg", ".ipynb_checkpoints", ".mypy_cache", ".nox", ".pants.d",
    ".pyenv", ".pytest_cache", ".pytype", ".ruff_cache", ".svn", ".tox", ".venv", ".vscode", "__pycache__",
    "__pypackages__", "_build", "buck-out", "build", "dist", "node_modules", "site-packages", "venv",
})  # fmt: skip
"""Folders that hold what nobody wrote there by hand."""

_ENVIRONMENT: Final = "pyvenv.cfg"


@dataclass(frozen=True, slots=True)
class File:
    """One file to lint.

    Attributes:
        path: Absolute, symbolic links as they are; None for standard input.
        shown: How it is called in reports.
    """

    path: Path | None
    shown: str


@dataclass(slots=True)
class Discovered:
    """What the arguments come to.

    Attributes:
        files: In the order of the arguments, and in a folder by name; none twice.
        unreadable: Folders that could not be listed.
    """

    files: list[File] = field(default_factory=list)
    unreadable: list[Unreadable] = field(default_factory=list)


def discover(arguments: Sequence[str], settings: Settings) -> Discovered:
    """The files that the arguments name, and those in the folders that they name.

    Raises:
        UsageError: One does not exist, is a folder that cannot be listed, or standard input is named twice.
    """
    if list(arguments).count(STANDARD_INPUT) > 1:
        raise UsageError("standard input is named twice", hint="give `-` once")
    found, seen = Discovered(), set[Path]()
    excluded = Globs(settings.exclude, settings.root)
    for argument in arguments:
        if not argument:
            raise UsageError("a path is empty", hint="give `.` for the working directory")
        if argument == STANDARD_INPUT:
            found.files.append(File(None, printable(settings.stdin_filename or STANDARD_INPUT)))
            continue
        path = _existing(argument)
        for file in _walk(_listable(path), excluded, found) if path.is_dir() else [path]:
            if file not in seen:
                seen.add(file)
                found.files.append(File(file, shown(file)))
    return found


def shown(path: Path) -> str:
    """How an absolute path is called in reports: from the working directory where it lies below that."""
    with_links = Path(os.path.abspath(path))  # noqa: PTH100 - keeps symbolic links
    here = Path.cwd()
    return printable(with_links.relative_to(here).as_posix() if with_links.is_relative_to(here) else str(with_links))


def printable(name: str) -> str:
    r"""A name as text; bytes that are not UTF-8 become `\xe9`."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _existing(argument: str) -> Path:
    """The absolute path that an argument names.

    Raises:
        UsageError: Nothing is there.
    """
    try:
        path = Path(os.path.abspath(argument))  # noqa: PTH100 - keeps symbolic links
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        if os.path.islink(argument):  # noqa: PTH114 - a path of `pathlib` has lost the slash at its end
            target = printable(os.readlink(argument))  # noqa: PTH115 - the same
            hint = "mend the link, or name the file itself"
            raise UsageError(
                f"`{printable(argument)}` is a link to `{target}`, which is not there", hint=hint
            ) from None
        raise UsageError(f"no such file or folder: `{printable(argument)}`", hint=_nearest(argument)) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"`{printable(argument)}` cannot be read: {reason}") from None
    return path


def _listable(folder: Path) -> Path:
    """The same folder.

    Raises:
        UsageError: It cannot be listed, so that nothing of what was asked for could be linted.
    """
    try:
        os.scandir(folder).close()
    except OSError as error:
        hint = "name a folder that you may read"
        raise UsageError(f"`{shown(folder)}` cannot be listed: {error.strerror or error}", hint=hint) from None
    return folder


def _nearest(argument: str) -> str | None:
    """A question that names what is nearest in the folder that does exist."""
    path = Path(argument)
    try:
        names = sorted(entry.name for entry in path.parent.iterdir())
    except (OSError, ValueError):
        return None
    near = difflib.get_close_matches(path.name, names, n=1)
    return f"did you mean `{printable(str(path.with_name(near[0])))}`?" if near else None


def _walk(top: Path, excluded: Globs, found: Discovered) -> Iterator[Path]:
    """The files below a folder, by name. Links to folders are not followed, as git does not."""
    waiting = [(top, True, Ignores.above(top, repository_of(top)))]
    while waiting:
        path, is_folder, above = waiting.pop()
        if not is_folder:
            yield path
            continue
        ignores = above.inside(path)
        for entry, is_inner in _listed(path, found):
            if not (ignores.ignore(entry, is_inner) or excluded.fit(entry, is_inner)):
                waiting.append((entry, is_inner, ignores))


def _listed(folder: Path, found: Discovered) -> list[tuple[Path, bool]]:
    """What may be visited in a folder, last name first, and whether it is a folder."""
    try:
        with os.scandir(folder) as entries:
            wanted = [entry for entry in entries if _is_wanted(entry)]
    except OSError as error:
        problem = f"cannot be listed: {error.strerror or error}"
        found.unreadable.append(Unreadable(shown(folder), None, None, problem))
        return []
    wanted.sort(key=lambda entry: os.fsencode(entry.name), reverse=True)
    return [(Path(entry.path), entry.is_dir(follow_symlinks=False)) for entry in wanted]


def _is_wanted(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder that people write in, or a regular file with an ending that is looked for."""
    try:
        if entry.is_dir(follow_symlinks=False):
            return entry.name not in SKIPPED_FOLDERS and not os.access(f"{entry.path}/{_ENVIRONMENT}", os.F_OK)
        return entry.name.endswith(ENDINGS) and stat.S_ISREG(entry.stat().st_mode)
    except OSError:  # a broken link, or a loop of links
        return False
