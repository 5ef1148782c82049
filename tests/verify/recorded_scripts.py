"""Scripts for the verification of commands, recorded in forks of a process that has imported torch."""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # the first `zero_grad` of each fork would import it

from oomdoctor.agent import settings
from oomdoctor.agent.accumulation_agent import AccumulationAgent
from oomdoctor.agent.guard import FAILURES
from oomdoctor.command.trial_events import TrialEvents
from oomdoctor.results.verify import VerifyResult
from oomdoctor.verification.command_judgement import CommandJudge
from oomdoctor.verification.recording import Recording

MICRO_BATCH, STEPS, EPOCH = 2, 4, 20


def record(script: Path, micro_batch: int, steps: int) -> Recording:
    """Run a script in a fork with the agent in it; its arguments are the micro-batch and the steps."""
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        code = 1
        try:
            os.close(reading)
            os.chdir(script.parent)
            _run(script, (micro_batch, steps, EPOCH), writing)
            code = 0
        except BaseException:  # noqa: BLE001 - a fork that went on would be a second test run
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as lines:
        messages = [json.loads(line) for line in lines]
    assert os.waitpid(pid, 0)[1] == 0
    events = TrialEvents()
    for message in messages:
        events.add(message)
    windows = events.windows[pid]
    assert len(windows) == len(messages), "every message is one that the parent reads"
    return Recording.of(windows)


def _run(script: Path, sizes: tuple[int, int, int], writing: int) -> None:
    settings.ACCUMULATION = sizes
    warnings.simplefilter("ignore")

    def send(message: Any) -> None:
        line = {"protocol": 1, "event": message.event, **asdict(message)}
        os.write(writing, json.dumps(line).encode() + b"\n")

    agent = AccumulationAgent(torch, send)
    agent.begin()
    sys.argv = [script.name, *map(str, sizes[:2])]
    code = compile(script.read_text(encoding="utf-8"), str(script), "exec")
    exec(code, {"__name__": "__main__", "__file__": str(script)})  # noqa: S102 - our own text
    agent.end()
    assert not FAILURES, FAILURES


def judged(script: Path, *, micro_batch: int = MICRO_BATCH, steps: int = STEPS) -> VerifyResult:
    """The verdict on a script."""
    whole = record(script, micro_batch * steps, 1)
    parts = record(script, micro_batch, steps)
    judge = CommandJudge(micro_batch, steps, whole, parts, lambda: record(script, micro_batch * steps, 1))
    return judge.judge(script.name)


def line_of(source: str, marker: str = "# here") -> int:
    """The line of a script that has the marker."""
    return next(number for number, line in enumerate(source.splitlines(), 1) if line.endswith(marker))


def changed(source: str, replacements: Sequence[tuple[str, str]]) -> str:
    """A script with texts replaced, each of which it has."""
    for old, new in replacements:
        assert old in source, old
        source = source.replace(old, new)
    return source
