"""Errors of the user's code, shown as tracebacks cut down to the lines that the user wrote."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from pathlib import Path
from traceback import StackSummary, TracebackException, format_exception_only, walk_tb
from typing import TYPE_CHECKING, TypeVar

from oomdoctor.errors import NoAnswerError, TargetError

if TYPE_CHECKING:
    from collections.abc import Sequence


Result = TypeVar("Result")
Passes = Callable[[BaseException], bool]

_PACKAGE = Path(__file__).parent.parent
_EXAMPLES = _PACKAGE / "examples"
_STANDARD_LIBRARY = {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
_INSTALLED = frozenset({"site-packages", "dist-packages"})

_FIRST_LINES, _LAST_LINES = 20, 40
_LONGEST_LINE = 400
_LONGEST_SUMMARY = 200


def user_traceback(error: BaseException, own_roots: Sequence[Path] = ()) -> str:
    """Return the traceback of `error` and of what caused it, without the frames of libraries.

    Where an error was raised inside a library, that one innermost frame stays: it names the operation.

    Args:
        error: What the user's code raised; no reference to it or to its frames is kept.
        own_roots: Directories or files of the user's code; other files that belong to no library are taken as theirs.

    Returns:
        At most 61 lines without a final newline.
    """
    tree = TracebackException.from_exception(error, compact=True)
    links = [tree]
    while links:
        link = links.pop()
        link.stack = _own_frames(link.stack, own_roots)
        links += [other for other in (link.__cause__, link.__context__, *(link.exceptions or ())) if other is not None]
    return _shortened("".join(tree.format()))


def raised_in_user_code(error: BaseException, own_roots: Sequence[Path] = ()) -> bool:
    """Return whether a line of the user's took part in raising `error`."""
    return any(_is_own(frame.f_code.co_filename, own_roots) for frame, _ in walk_tb(error.__traceback__))


def summary(error: BaseException) -> str:
    """Return the error in one line of at most 200 characters, such as `ValueError: no such size`."""
    lines = [line for line in format_exception_only(error) if not line.startswith(" ")]
    first = next(iter("".join(lines).strip().splitlines()), type(error).__name__)
    return first if len(first) <= _LONGEST_SUMMARY else f"{first[:_LONGEST_SUMMARY]}..."


def call_user(
    function: Callable[..., Result],
    *args: object,
    call: str,
    own_roots: Sequence[Path],
    passes: Passes,
    advise: Callable[[BaseException], str | None],
) -> Result:
    """Call a function of the user's file.

    Args:
        function: What to call.
        args: Its arguments.
        call: The call as the error shows it, such as `make_batch(37)`.
        own_roots: As for `user_traceback`.
        passes: Whether an error goes to the caller as it is, for example because it tells of memory.
        advise: The hint for an error, where there is one.

    Raises:
        TargetError: The function raised or called exit. It holds no reference to the error, whose frames hold tensors.
    """
    try:
        return function(*args)
    except BaseException as error:  # SystemExit is raised by `exit()`, and any other may be
        if passes(error) or isinstance(error, NoAnswerError):  # what cannot be traced is no fault of the code's
            raise
        raised = failure(error, f"`{call}`", own_roots, hint=advise(error))
    raise raised  # outside of the `except`, whose error would otherwise live on as the context


def failure(error: BaseException, what: str, own_roots: Sequence[Path], *, hint: str | None = None) -> TargetError:
    """Return the error to raise in place of one of the user's code.

    Args:
        error: What the code raised; `exit()` arrives as SystemExit.
        what: What raised it, such as `` `make_batch(37)` ``.
        own_roots: As for `user_traceback`.
        hint: What to do about it, where that is known.
    """
    details = user_traceback(error, own_roots)
    if isinstance(error, SystemExit | KeyboardInterrupt):
        code = f" with {error.code!r}" if isinstance(error, SystemExit) else ""
        return TargetError(f"{what} called exit{code}", hint=hint or _EXIT_HINT, details=details)
    return TargetError(f"{what} raised `{summary(error)}`", hint=hint, details=details)


_EXIT_HINT = 'what oomdoctor calls must return; put what only a script does under `if __name__ == "__main__":`'


def _own_frames(stack: StackSummary, own_roots: Sequence[Path]) -> StackSummary:
    kept = [frame for frame in stack if _is_own(frame.filename, own_roots)]
    innermost = stack[-1] if stack else None
    if innermost is not None and innermost not in kept and _is_library(Path(innermost.filename)):
        kept.append(innermost)
    return StackSummary.from_list(kept)


def _is_own(filename: str, own_roots: Sequence[Path]) -> bool:
    path = Path(filename)
    if filename.startswith("<"):  # made at run time: `<frozen importlib._bootstrap>`, `<string>`
        return False
    if path.is_relative_to(_PACKAGE):
        return path.is_relative_to(_EXAMPLES)
    if any(path.is_relative_to(root) and not _is_installed(path.relative_to(root)) for root in own_roots):
        return not _is_standard(path)
    return not _is_installed(path) and not _is_standard(path)


def _is_library(path: Path) -> bool:
    return _is_installed(path) and not path.is_relative_to(_PACKAGE)


def _is_installed(path: Path) -> bool:
    return not _INSTALLED.isdisjoint(path.parts)


def _is_standard(path: Path) -> bool:
    return any(path.is_relative_to(root) and not _is_installed(path.relative_to(root)) for root in _STANDARD_LIBRARY)


def _shortened(text: str) -> str:
    lines = [
        line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}..." for line in text.rstrip().splitlines()
    ]
    omitted = len(lines) - _FIRST_LINES - _LAST_LINES
    if omitted > 0:
        lines[_FIRST_LINES : _FIRST_LINES + omitted] = [f"... {omitted} lines left out ..."]
    return "\n".join(lines)
