"""Program of `action.yml`: run one command, and write outputs, annotations and the job's summary from its JSON.

Inputs come in variables and go on as lists of words; no shell and no expression of a workflow ever reads them. It is
run by its path, by whatever Python has the model's packages, and so imports nothing of oomdoctor's.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


COMMANDS: Final = ("check", "probe", "lint", "diagnose")
_OOMDOCTOR: Final = (sys.executable, "-P", "-m", "oomdoctor")
_EXIT_USAGE: Final = 2
_NO_RESULT: Final = (
    "`oomdoctor {name}` ended with exit code {code} and no result; its log says why, or `arguments` chose the format "
    "or the output"
)
_YES_AND_NO: Final = ("true", "false")


def main(inputs: Mapping[str, str]) -> int:
    """Run the action.

    Args:
        inputs: The step's variables: `INPUT_...`, and what the runner sets for every step.

    Returns:
        The step's exit code.
    """
    problem = _problem(inputs)
    if problem is not None:
        _say(f"::error title=oomdoctor::{problem}")
        _write_outputs(inputs, {"exit-code": str(_EXIT_USAGE)})
        return _EXIT_USAGE
    report = Path(inputs.get("RUNNER_TEMP") or tempfile.gettempdir()) / f"oomdoctor-{secrets.token_hex(8)}.json"
    code = _unheard(inputs, [inputs["INPUT_COMMAND"], "--format", "json", "-o", str(report), *_words(inputs)])
    document = _read(report)
    if document is None:
        code = code or _EXIT_USAGE  # such as after `--help`: nothing was checked, which is not to pass
    _write_outputs(inputs, {"exit-code": str(code), **_outputs(document, report)})
    if document is None:
        _say(f"::error title=oomdoctor::{_NO_RESULT.format(name=inputs['INPUT_COMMAND'], code=code)}")
    else:
        rendered = _render(inputs, report)
        code = code or rendered
    return code if inputs.get("INPUT_FAIL") != "false" else 0


def _problem(inputs: Mapping[str, str]) -> str | None:
    """Return the problem with the inputs in our own words alone, without repeating them; None where there is none."""
    if inputs.get("INPUT_COMMAND") not in COMMANDS:
        return f"the input `command` is none of {', '.join(COMMANDS)}"
    for name in ("INPUT_SUMMARY", "INPUT_FAIL"):
        if inputs.get(name, "true") not in _YES_AND_NO:
            return f"the input `{name.removeprefix('INPUT_').lower()}` is neither true nor false"
    try:
        _words(inputs)
    except ValueError:
        return "the input `arguments` has a quote that is not closed"
    if not _is_in_the_checkout(inputs):
        return "the input `working-directory` is not a folder of the checkout"
    return None


def _is_in_the_checkout(inputs: Mapping[str, str]) -> bool:
    checkout = Path(inputs.get("GITHUB_WORKSPACE") or ".").resolve()
    directory = Path(inputs.get("INPUT_WORKING_DIRECTORY") or ".").resolve()
    return directory.is_dir() and directory.is_relative_to(checkout)


def _words(inputs: Mapping[str, str]) -> list[str]:
    """Return words as a shell's, but for backslashes, which are what they are: parts of paths and patterns."""
    reader = shlex.shlex(inputs.get("INPUT_ARGUMENTS", ""), posix=True, punctuation_chars=False)
    reader.whitespace_split, reader.commenters, reader.escape = True, "", ""
    return list(reader)


def _render(inputs: Mapping[str, str], report: Path) -> int:
    """Write annotations, the summary and, where it is asked for, the report; return 0 where all were written."""
    hidden = {} if inputs.get("INPUT_SUMMARY") != "false" else {"GITHUB_STEP_SUMMARY": ""}
    code = _oomdoctor(inputs, ["report", str(report), "--format", "github"], **hidden)
    output = inputs.get("INPUT_OUTPUT")
    return code if not output else code or _unheard(inputs, ["report", str(report), f"--output={output}"])


def _unheard(inputs: Mapping[str, str], words: Sequence[str]) -> int:
    """Run oomdoctor so that nothing which it repeats, of a model or an input, is taken for a command to the runner."""
    token = secrets.token_hex(16)
    _say(f"::stop-commands::{token}")
    try:
        return _oomdoctor(inputs, words)
    finally:
        _say(f"\n::{token}::")


def _oomdoctor(inputs: Mapping[str, str], words: Sequence[str], **variables: str) -> int:
    directory = inputs.get("INPUT_WORKING_DIRECTORY") or "."
    return subprocess.run(
        [*_OOMDOCTOR, *words], cwd=directory, env={**inputs, **variables}, stdin=subprocess.DEVNULL, check=False
    ).returncode


def _read(report: Path) -> dict[str, Any] | None:
    try:
        document = json.loads(report.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(document, dict) or "problem" in (document.get("result") or {}):
        return None  # the command failed, and its log says why
    return document


def _outputs(document: Mapping[str, Any] | None, report: Path) -> dict[str, str]:
    """Return the outputs that a result has."""
    if document is None:
        return {}
    found = {"report": str(report.resolve())}
    if document["command"] == "probe":
        return {**found, **_figures(document["result"])}
    if document["command"] == "check":
        return {**found, **_figures_by_name(document["result"]["entries"])}
    return found


def _figures_by_name(entries: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return one entry's figures as they are, those of several as an object by name."""
    by_name = {entry["name"]: _figures(entry["probe"]) for entry in entries if entry["probe"] is not None}
    if len(entries) == 1:
        return next(iter(by_name.values()), {})
    names = ("micro-batch", "accumulation-steps")
    return {
        name: json.dumps({entry: int(figures[name]) for entry, figures in by_name.items() if name in figures})
        for name in names
    }


def _figures(result: Mapping[str, Any]) -> dict[str, str]:
    plan = result["accumulation"]
    steps = {} if plan is None else {"accumulation-steps": str(plan["steps"])}
    return {"micro-batch": str(result["micro_batch"]["maximum"]), **steps}


def _write_outputs(inputs: Mapping[str, str], outputs: Mapping[str, str]) -> None:
    """Hand outputs to the runner, each between delimiters that nobody can know before."""
    path = inputs.get("GITHUB_OUTPUT")
    if not path:
        return
    with Path(path).open("a", encoding="utf-8", newline="") as stream:
        for name, value in outputs.items():
            delimiter = f"oomdoctor-{secrets.token_hex(16)}"
            stream.write(f"{name}<<{delimiter}\n{value}\n{delimiter}\n")


def _say(line: str) -> None:
    """Print at once: what the command prints itself comes after it."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(os.environ))
