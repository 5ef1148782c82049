"""From the paths on the command line to the files that are linted: folders, globs and `.gitignore`.

Patterns are matched here rather than by the library pathspec, which answers for files alone: of a folder that `!*/`
takes back below `*` it says that git ignores it, so that ignored folders could not be left out of the walk.
"""

from __future__ import annotations

import difflib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from oomdoctor.errors import UsageError
from oomdoctor.lint.settings import LintSettings
from oomdoctor.lint.source import UnreadableError, read
from oomdoctor.results.lint import Unreadable

_PIECE: Final = re.compile(
    r"(?P<any_folders>(?:(?<=/)|^)\*\*/)"
    r"|(?P<all_below>(?<=/)\*\*$)"
    r"|(?P<stars>\*+)"
    r"|(?P<one>\?)"
    r"|(?P<set>\[(?P<turned>[!^])?(?P<members>\]?+(?:\[:\w+:\]|\\.|[^]\\])*)\])"
    r"|\\(?P<literal>.)"
    r"|(?P<broken>[\[\\])"
    r"|(?P<plain>.)",
    re.DOTALL,
)
_MEMBER: Final = re.compile(r"\[:(?P<class>\w+):\]|\\?(?P<first>.)(?:-\\?(?P<last>.))?", re.DOTALL)
_TRAILING: Final = re.compile(r"(?<!\\)[ ]+$|\r$")
_CLASSES: Final = {
    "alnum": "0-9A-Za-z", "alpha": "A-Za-z", "blank": r" \t", "cntrl": r"\x00-\x1f\x7f", "digit": "0-9",
    "graph": "!-~", "lower": "a-z", "print": " -~", "punct": r"!-/:-@\[-`{-~", "space": r"\s", "upper": "A-Z",
    "xdigit": "0-9A-Fa-f",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Wildcard:
    """A pattern of paths, with its regular expression.

    Attributes:
        regex: Regular expression for a whole path relative to the pattern's folder, without a slash at either end.
        ignores: False where it begins with `!` and takes back what earlier ones say.
        folders_only: Whether it ends with `/`.
    """

    regex: re.Pattern[str]
    ignores: bool
    folders_only: bool

    def fits(self, name: str, *, is_dir: bool) -> bool:
        """Return whether the pattern means this path itself, not a folder that the path lies in."""
        return (is_dir or not self.folders_only) and self.regex.fullmatch(name) is not None


def wildcard(line: str) -> Wildcard | None:
    """The pattern that a line holds; None for a comment, for an empty line and for what git never matches."""
    line = _TRAILING.sub("", line)
    if line.startswith("#"):
        return None
    ignores, body = not line.startswith("!"), line.removeprefix("!")
    folders_only, body = body.endswith("/"), body.removesuffix("/")
    if not body:
        return None
    # A slash at the beginning or in the middle ties the pattern to its folder; without one any depth is meant.
    head = "" if "/" in body else "(?:.*/)?"
    try:
        regex = re.compile(head + "".join(_translated(body.removeprefix("/"))), re.DOTALL)
    except (re.error, ValueError):
        return None
    return Wildcard(regex, ignores, folders_only)


def _translated(body: str) -> Iterator[str]:
    """The parts of a regular expression.

    Raises:
        ValueError: A bracket or a backslash has nothing after it.
    """
    for piece in _PIECE.finditer(body):
        if piece.lastgroup == "broken" or piece["broken"]:
            raise ValueError(body)
        if piece["members"] is not None:
            inside = "".join(_member(member) for member in _MEMBER.finditer(piece["members"]))
            yield f"[^/{inside}]" if piece["turned"] else f"(?!/)[{inside}]"
        elif piece["plain"] or piece["literal"]:
            yield re.escape(piece["plain"] or piece["literal"])
        else:
            yield _WILD[piece.lastgroup or ""]


_WILD: Final = {"any_folders": "(?:.*/)?", "all_below": ".+", "stars": "[^/]*", "one": "[^/]"}


def _member(member: re.Match[str]) -> str:
    """A part of a set.

    Raises:
        ValueError: There is no such class of characters.
    """
    if member["class"]:
        if member["class"] not in _CLASSES:
            raise ValueError(member["class"])
        return _CLASSES[member["class"]]
    first, last = member["first"], member["last"] or member["first"]
    # What begins a range is in the set for git even where the range is the wrong way round.
    span = f"-{re.escape(last)}" if first < last else ""
    return re.escape(first) + span


_HERE: Final = re.compile(r"(?:(?<=/)|^)(?:\./)+")


class Globs:
    """Patterns that paths may fit: `tests/` and `*.py` at any depth, `src/legacy/**` and `./a.py` below the folder.

    Args:
        patterns: Globs; one that begins with `!` fits all paths that it does not match.
        root: The folder that they are relative to.
    """

    def __init__(self, patterns: Iterable[str], root: Path) -> None:
        self._root = root
        self._patterns = [found for found in map(wildcard, map(_tied, patterns)) if found is not None]

    def fit(self, path: Path, is_dir: bool = False) -> bool:  # noqa: FBT001, FBT002 - as a path's own methods give it
        """Return whether an absolute path, or a folder that it lies in, fits one of the patterns."""
        if not self._patterns:
            return False
        below = path.relative_to(self._root) if path.is_relative_to(self._root) else path.relative_to(path.anchor)
        folders = [parent.as_posix() for parent in below.parents[:-1]]
        return any(
            pattern.ignores
            == (pattern.fits(str(below), is_dir=is_dir) or any(pattern.fits(name, is_dir=True) for name in folders))
            for pattern in self._patterns
        )


def _tied(pattern: str) -> str:
    """A pattern without `./`, which git never matches: one that begins so means the folder itself."""
    body = pattern.removeprefix("!")
    sign = pattern[: len(pattern) - len(body)]
    return f"{sign}{'/' if body.startswith('./') else ''}{_HERE.sub('', body)}"


_NAME: Final = ".gitignore"
_MOST_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Ignores:
    """The patterns that hold in a folder.

    Attributes:
        patterns: From each file in its order, the nearest file's last; each file with the length of the path of the
            folder that its patterns are relative to.
    """

    patterns: tuple[tuple[int, tuple[Wildcard, ...]], ...] = ()

    @classmethod
    def above(cls, folder: Path, repository: Path | None) -> Ignores:
        """Return the patterns of the files above a folder in its repository; the folder's own file is left out.

        Where git ignores the folder itself, whoever names it wants what is in it: nothing above it holds then.
        """
        if repository is None:
            return cls()
        found = cls().and_file(repository, repository / ".git" / "info" / "exclude")
        if folder == repository:
            return found
        between = [parent for parent in reversed(folder.parents) if parent.is_relative_to(repository)]
        for parent, child in zip(between, [*between[1:], folder], strict=True):
            found = found.inside(parent)
            if found.ignore(child, is_dir=True):
                return cls()
        return found

    def inside(self, folder: Path) -> Ignores:
        """Return the patterns that apply in a folder, with those of its own file."""
        return self.and_file(folder, folder / _NAME)

    def and_file(self, root: Path, file: Path) -> Ignores:
        """Return these patterns and those of a file, which are relative to `root`."""
        if not os.access(file, os.R_OK):
            return self
        try:
            lines = read(file, _MOST_BYTES).decode("utf-8", "surrogateescape").removeprefix("\ufeff").split("\n")
        except UnreadableError:
            return self
        found = tuple(filter(None, map(wildcard, lines)))
        return Ignores((*self.patterns, (len(str(root).rstrip("/")) + 1, found))) if found else self

    def ignore(self, path: Path, is_dir: bool) -> bool:  # noqa: FBT001 - as `Globs.fit`
        """Return whether git ignores a path whose folder it does not ignore: the last pattern that fits decides."""
        name = str(path)
        for start, patterns in reversed(self.patterns):
            below = name[start:]
            for pattern in reversed(patterns):
                if pattern.fits(below, is_dir=is_dir):
                    return pattern.ignores
        return False


def repository_of(path: Path) -> Path | None:
    """The nearest folder with a `.git` at or above a path; None where there is none."""
    return next((parent for parent in (path, *path.parents) if os.access(parent / ".git", os.F_OK)), None)


STANDARD_INPUT: Final = "-"
ENDINGS: Final = (".py", ".ipynb")
"""Endings of the files that are looked for in a folder; a file that is named outright may have any."""

SKIPPED_FOLDERS: Final = frozenset({
    ".bzr", ".direnv", ".eggs", ".git", ".git-rewrite", ".hg", ".ipynb_checkpoints", ".mypy_cache", ".nox", ".pants.d",
    ".pyenv", ".pytest_cache", ".pytype", ".ruff_cache", ".svn", ".tox", ".venv", ".vscode", "__pycache__",
    "__pypackages__", "_build", "buck-out", "build", "dist", "node_modules", "site-packages", "venv",
})  # fmt: skip
"""Folders that hold what nobody wrote there by hand."""

_ENVIRONMENT: Final = "pyvenv.cfg"
_NAME_PYTHON: Final = "name a Python file, a notebook, or a folder that holds some"


@dataclass(frozen=True, slots=True)
class File:
    """A file to lint.

    Attributes:
        path: Absolute, symbolic links as they are; None for standard input.
        shown: Name in reports.
        is_named: Whether an argument names it, rather than a folder that it lies in.
    """

    path: Path | None
    shown: str
    is_named: bool = True


@dataclass(slots=True)
class Discovered:
    """The files that the arguments name, and the folders that could not be listed.

    Attributes:
        files: Files in the order of the arguments, and in a folder by name; none twice.
        unreadable: Folders that could not be listed.
    """

    files: list[File] = field(default_factory=list)
    unreadable: list[Unreadable] = field(default_factory=list)


def discover(arguments: Sequence[str], settings: LintSettings) -> Discovered:
    """The files that the arguments name, and those in the folders that they name.

    Raises:
        UsageError: A path does not exist, is a folder that cannot be listed, or standard input is named twice.
    """
    if list(arguments).count(STANDARD_INPUT) > 1:
        raise UsageError("standard input is named twice", hint="give `-` once")
    found, seen = Discovered(), set[Path]()
    excluded = Globs(settings.exclude, settings.root)
    for argument in arguments:
        if not argument:
            raise UsageError("a path is empty", hint="give `.` for the working directory")
        if argument == STANDARD_INPUT:
            found.files.append(File(None, printable_name(settings.stdin_filename or STANDARD_INPUT)))
            continue
        path = _existing(argument)
        is_folder = path.is_dir()
        for file in _walk(_listable(path), excluded, found) if is_folder else [path]:
            if file not in seen:
                seen.add(file)
                found.files.append(File(file, display_path(file), is_named=not is_folder))
    return found


def display_path(path: Path) -> str:
    """Return an absolute path as reports show it: relative to the working directory where it lies below that."""
    with_links = Path(os.path.abspath(path))  # noqa: PTH100 - keeps symbolic links
    here = Path.cwd()
    return printable_name(
        with_links.relative_to(here).as_posix() if with_links.is_relative_to(here) else str(with_links)
    )


def printable_name(name: str) -> str:
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
            target = printable_name(os.readlink(argument))  # noqa: PTH115 - the same
            hint = "repair the link, or name the file itself"
            raise UsageError(
                f"`{printable_name(argument)}` is a link to `{target}`, which is not there", hint=hint
            ) from None
        raise UsageError(f"no such file or folder: `{printable_name(argument)}`", hint=_nearest(argument)) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"`{printable_name(argument)}` cannot be read: {reason}") from None
    return path


def _listable(folder: Path) -> Path:
    """Return the folder unchanged, once it could be listed.

    Raises:
        UsageError: The folder cannot be listed, so that nothing of it could be linted.
    """
    try:
        os.scandir(folder).close()
    except OSError as error:
        hint = "name a folder that you may read"
        raise UsageError(f"`{display_path(folder)}` cannot be listed: {error.strerror or error}", hint=hint) from None
    return folder


def _nearest(argument: str) -> str:
    """A question that names what is nearest in the folder that does exist; where nothing is near, what to name."""
    path = Path(argument)
    try:
        names = sorted(entry.name for entry in path.parent.iterdir())
    except (OSError, ValueError):
        names = []
    near = difflib.get_close_matches(path.name, names, n=1)
    return f"did you mean `{printable_name(str(path.with_name(near[0])))}`?" if near else _NAME_PYTHON


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
    """Return the entries of a folder that may be visited, last name first, each with whether it is a folder."""
    try:
        with os.scandir(folder) as entries:
            wanted = [entry for entry in entries if _is_wanted(entry)]
    except OSError as error:
        problem = f"cannot be listed: {error.strerror or error}"
        found.unreadable.append(Unreadable(display_path(folder), None, None, problem))
        return []
    wanted.sort(key=lambda entry: os.fsencode(entry.name), reverse=True)
    return [(Path(entry.path), entry.is_dir(follow_symlinks=False)) for entry in wanted]


def _is_wanted(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a folder that people write in, or a regular file with one of `ENDINGS`."""
    try:
        if entry.is_dir(follow_symlinks=False):
            return entry.name not in SKIPPED_FOLDERS and not os.access(f"{entry.path}/{_ENVIRONMENT}", os.F_OK)
        return entry.name.endswith(ENDINGS) and stat.S_ISREG(entry.stat().st_mode)
    except OSError:  # a broken link, or a loop of links
        return False
