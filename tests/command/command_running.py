"""Ways to probe commands: through the command line, and single trials forked from one process that all tests share."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, Self

import jsonschema
from running import run_command

from oomdoctor.command.fork_server import ForkServer
from oomdoctor.command.outcome import ClassifiedTrial, classify_trial
from oomdoctor.command.trial import EndedTrial, TrialStart, run_trial
from oomdoctor.command.trial_events import TrialEvents
from oomdoctor.engines.choice import choose_engine
from oomdoctor.run.environment import with_agent

SMALL = Path(__file__).with_name("scripts") / "small"
PYTHON = sys.executable
MEMORY_BYTES = 256 * 2**20
BATCH = ("--batch-size", "{micro_batch}")
"""How every small script takes its size."""

_SCHEMA = json.loads((files("oomdoctor") / "schemas" / "probe.schema.json").read_text(encoding="utf-8"))


def small_copy(directory: Path) -> Path:
    """A working directory with the small scripts in it, and nothing that an earlier run wrote."""
    for path in (*SMALL.glob("*.py"), *SMALL.glob("trainer_package/*.py")):
        copy = directory / path.relative_to(SMALL)
        copy.parent.mkdir(exist_ok=True)
        shutil.copy(path, copy)
    return directory


def ask(directory: Path, *arguments: str, **options: Any) -> CompletedProcess[str]:
    """`oomdoctor probe` on a null GPU of 256 MiB, in a directory; the words after the options are the command."""
    memory = () if "--capacity" in arguments or "--gpu" in arguments else ("--capacity", "256MiB")
    return run_command(["probe", "--engine", "null", *memory, "--quiet", *arguments], cwd=directory, **options)


def answer(directory: Path, *arguments: str, **options: Any) -> dict[str, Any]:
    """The result of a probe that answers, as its JSON document has it."""
    ended = ask(directory, "--json", *arguments, **options)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr
    document = json.loads(ended.stdout)
    jsonschema.validate(document, _SCHEMA)
    result: dict[str, Any] = document["result"]
    return result


def reasons(result: dict[str, Any]) -> dict[str, str]:
    """The sentences of a result's reasons by their subjects."""
    return {reason["subject"]: reason["text"] for reason in result["reasons"]}


@dataclass
class Forks:
    """Trials that are forked from one process, which one script's first trial described; a context manager.

    Attributes:
        directory: Where the scripts are.
        first: How the first trial ended, whose Python imported torch itself.
    """

    directory: Path
    first: EndedTrial = field(init=False)

    def __enter__(self) -> Self:
        self._sockets = Path(tempfile.mkdtemp(prefix="oomdoctor-test-"))
        self._count = itertools.count()
        engine = choose_engine(engine="null", gpu=None, device=None, memory_bytes=MEMORY_BYTES, base=os.environ)
        self._environment = with_agent(engine.environment)
        self.first = self._run([PYTHON, "plain_loop.py"], OOMDOCTOR_TRIAL_DESCRIBE="1")
        self._server = ForkServer(self.first.events.trainers()[0].process, self._sockets)
        assert self._server.wait(60, ()), self._server.reason
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()
        shutil.rmtree(self._sockets)

    def trial(self, *words: str, steps: int = 3, timeout: float = 60, **environment: str) -> EndedTrial:
        """Run a command for so many steps."""
        forked = {"OOMDOCTOR_FORK_SOCKET": str(self._server.path), **environment}
        return self._run([PYTHON, *words], steps=steps, timeout=timeout, **forked)

    def classified(self, *words: str, steps: int = 3, **options: Any) -> ClassifiedTrial:
        """What a trial of a command is taken for."""
        return classify_trial(self.trial(*words, steps=steps, **options), 0, MEMORY_BYTES, steps)

    def _run(self, words: list[str], *, steps: int = 3, timeout: float = 60, **environment: str) -> EndedTrial:
        start = TrialStart(
            command=words,
            directory=self.directory,
            environment={**self._environment, "OOMDOCTOR_TRIAL_STEPS": str(steps), **environment},
            sockets=self._sockets,
            name=f"trial-{next(self._count)}",
            timeout_seconds=timeout,
        )
        return run_trial(start, TrialEvents())
