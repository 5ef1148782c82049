"""As much of GitHub's runner as the action and the documented workflow need: steps, inputs, outputs and commands.

It does what the runner's documentation says and no more. A `run:` is a file for `bash --noprofile --norc -eo pipefail`.
`${{ inputs.name }}` and `${{ steps.id.outputs.name }}` are put in place as they are. Outputs come from the file that
`GITHUB_OUTPUT` names. Lines of the log that begin with `::` are commands, until `::stop-commands::` says otherwise.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from running import ROOT

_EXPRESSION = re.compile(r"\$\{\{\s*([a-zA-Z0-9_.-]+)\s*\}\}")
_BASH = ("bash", "--noprofile", "--norc", "-eo", "pipefail")


@dataclass
class Ended:
    """How an action or a step ended."""

    code: int
    log: str
    outputs: dict[str, str] = field(default_factory=dict)
    summary: str = ""

    @property
    def commands(self) -> list[str]:
        """Lines that the runner takes for commands, in their order."""
        heard, token = [], None
        for line in self.log.splitlines():
            text = line.lstrip()
            if token is not None:
                token = None if text == f"::{token}::" else token
            elif text.startswith("::stop-commands::"):
                token = text.removeprefix("::stop-commands::")
            elif text.startswith("::") or "##[" in text:
                heard.append(text)
        return heard


@dataclass
class Runner:
    """Runs steps in a checkout.

    Attributes:
        workspace: The checkout.
        temporary: A folder for what the runner keeps.
    """

    workspace: Path
    temporary: Path

    def use(self, action: Path, inputs: Mapping[str, str]) -> Ended:
        """Run a composite action as `uses:` does."""
        described = yaml.safe_load((action / "action.yml").read_text(encoding="utf-8"))
        unknown = set(inputs) - set(described["inputs"])
        assert not unknown, f"the action has no inputs {unknown}"
        given = {name: each.get("default", "") for name, each in described["inputs"].items()} | dict(inputs)
        values = {f"inputs.{name}": str(value) for name, value in given.items()}
        whole = Ended(0, "")
        for step in described["runs"]["steps"]:
            assert step["shell"] == "bash", "only bash is played"
            ended = self.run(step["run"], _filled(step.get("env", {}), values), action)
            values |= {f"steps.{step.get('id')}.outputs.{name}": value for name, value in ended.outputs.items()}
            whole = Ended(ended.code, whole.log + ended.log, {}, whole.summary + ended.summary)
            if ended.code:
                break
        templates = {name: each["value"] for name, each in described["outputs"].items()}
        whole.outputs = _filled(templates, values)
        return whole

    def run(self, script: str, variables: Mapping[str, str], action: Path | None = None) -> Ended:
        """Run one `run:` as a step."""
        file, outputs, summary = (self.temporary / name for name in ("step.sh", "outputs", "summary"))
        file.write_text(script, encoding="utf-8")
        outputs.write_text("")
        summary.write_text("")
        environment = {
            **{name: os.environ[name] for name in ("HOME", "TERM", "COLUMNS", "XDG_CACHE_HOME") if name in os.environ},
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "CI": "true",
            "GITHUB_ACTIONS": "true",
            "GITHUB_WORKSPACE": str(self.workspace),
            "GITHUB_OUTPUT": str(outputs),
            "GITHUB_STEP_SUMMARY": str(summary),
            "GITHUB_ACTION_PATH": str(action or ""),
            "RUNNER_TEMP": str(self.temporary),
            **variables,
        }
        ended = subprocess.run(
            [*_BASH, str(file)],
            cwd=self.workspace,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            timeout=240,
            check=False,
        )
        log = ended.stdout.decode("utf-8", "replace")
        return Ended(ended.returncode, log, read_outputs(outputs), summary.read_text("utf-8"))


def _filled(templates: Mapping[str, str], values: Mapping[str, str]) -> dict[str, str]:
    """Each template with its expressions in place; what has no value is empty, as on GitHub."""
    return {
        name: _EXPRESSION.sub(lambda match: values.get(match[1], ""), str(template))
        for name, template in templates.items()
    }


def read_outputs(file: Path) -> dict[str, str]:
    """What a step wrote for `GITHUB_OUTPUT`: `name=value` lines, and values between delimiters."""
    found: dict[str, str] = {}
    lines = iter(file.read_text(encoding="utf-8").split("\n"))
    for line in lines:
        if match := re.fullmatch(r"([^=<]+)<<(.+)", line):
            name, delimiter = match.groups()
            held = []
            for inner in lines:
                if inner == delimiter:
                    break
                held.append(inner)
            found[name] = "\n".join(held)
        elif line:
            name, _, value = line.partition("=")
            found[name] = value
    return found


def steps_of(workflow: str, job: str) -> list[dict[str, Any]]:
    """The steps of one job of a workflow."""
    steps: list[dict[str, Any]] = yaml.safe_load(workflow)["jobs"][job]["steps"]
    return steps


ACTION = ROOT
"""The folder with `action.yml`."""
