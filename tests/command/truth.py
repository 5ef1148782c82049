"""What a script's own run says: whether a micro-batch fits, found with no part of a probe in its processes.

Each runs as under `oomdoctor run`, without a history. On a null GPU alone numbers that the host has made are zeros as
well: transformers reads whether positions count up, and makes a mask that a GPU does without, for which a Llama of
eight layers has no room at the size that fits.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import CompletedProcess

from run_python import run_program
from running import python_path

from oomdoctor.engines.choice import choose_engine
from oomdoctor.run.environment import with_agent

SCRIPTS = Path(__file__).with_name("scripts")
STEPS = 3
TARGET_BATCH = 256

_OUT_OF_MEMORY = "CUDA out of memory"

# Nothing but a witness: what PyTorch counted is written down when the interpreter ends.
_WITNESS = """
import atexit, gc, json, os, sys
atexit.register(gc.freeze)  # a Python with torch ends a second sooner

def write():
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        peaks = {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
        with open(os.environ["TEST_PEAKS"], "w") as file:
            json.dump(peaks, file)

atexit.register(write)
"""


@dataclass(frozen=True)
class Script:
    """A training script and how it is called.

    Attributes:
        name: Its file.
        sizes: The words that set its sizes, with the placeholders of `oomdoctor probe`.
        steps: The words that make it end after so many optimizer steps; they are for a run by hand alone.
        options: What else its documentation gives it.
    """

    name: str
    sizes: tuple[str, ...]
    steps: tuple[str, ...]
    options: tuple[str, ...] = ()

    def template(self) -> list[str]:
        """The command as `oomdoctor probe` is given it: it trains for as long as it likes."""
        return [sys.executable, str(SCRIPTS / self.name), *self.options, *self.sizes]

    def command(self, micro_batch: int, target_batch: int = TARGET_BATCH) -> list[str]:
        """The command of one run by hand, which ends after `STEPS` steps."""
        accumulation = 1 if micro_batch == target_batch else 2
        values = {"{micro_batch}": str(micro_batch), "{accumulation_steps}": str(accumulation), "{steps}": str(STEPS)}
        return [_filled(word, values) for word in (*self.template(), *self.steps)]


def _filled(word: str, values: Mapping[str, str]) -> str:
    for placeholder, value in values.items():
        word = word.replace(placeholder, value)
    return word


FRAMEWORKS = (
    Script(
        "plain.py", ("--batch-size", "{micro_batch}", "--grad-accum", "{accumulation_steps}"), ("--max-steps={steps}",)
    ),
    Script(
        "trainer.py",
        ("--per_device_train_batch_size", "{micro_batch}", "--gradient_accumulation_steps", "{accumulation_steps}"),
        ("--max_steps={steps}",),
        ("--bf16", "--output_dir", "out"),
    ),
    Script(
        "lightning_gpt2.py",
        ("--batch-size", "{micro_batch}", "--accumulate-grad-batches", "{accumulation_steps}"),
        ("--max-steps={steps}",),
    ),
    Script(
        "accelerated.py",
        ("--batch_size", "{micro_batch}", "--gradient_accumulation_steps", "{accumulation_steps}"),
        ("--max_train_steps={steps}",),
    ),
    Script(
        "hydra_app.py",
        ("train.batch_size={micro_batch}", "train.accumulation_steps={accumulation_steps}"),
        ("train.max_steps={steps}",),
    ),
)
"""The five of the promise."""

OTHERS = (
    Script(
        "yaml_config.py",
        ("--set", "train.batch_size={micro_batch}", "--set", "train.accumulation_steps={accumulation_steps}"),
        ("--set", "train.max_steps={steps}"),
        (str(SCRIPTS / "gpt2.yaml"),),
    ),
    Script(
        "fabric_gpt2.py",
        ("--batch-size", "{micro_batch}", "--accumulate", "{accumulation_steps}"),
        ("--max-steps={steps}",),
    ),
)

_FEWER_BLOCKS = {"trainer.py": "--n_layer=2", "lightning_gpt2.py": "--layers=2"}
IN_THE_SUITE = tuple(
    replace(script, options=(*script.options, _FEWER_BLOCKS[script.name]))
    for script in FRAMEWORKS
    if script.name in _FEWER_BLOCKS
)
"""Those that the suite runs, with few blocks, since each run builds the model."""
"""The two that do most by themselves; `tests/bench/command_truth.py` runs all seven, on two cards."""


def fits(script: Script, micro_batch: int, environment: Mapping[str, str], *, target_batch: int = TARGET_BATCH) -> bool:
    """Whether the script comes to its end; any failure that is not out of memory raises AssertionError."""
    return _run(script.command(micro_batch, target_batch), environment, _in_a_fork)


def peaks(script: Script, micro_batch: int, environment: Mapping[str, str]) -> dict[str, int]:
    """Most bytes `allocated` and `reserved` over a whole run, as PyTorch counted them."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "sitecustomize.py").write_text(_WITNESS, encoding="utf-8")
        file = Path(directory, "peaks.json")
        witnessed = with_agent({**environment, "PYTHONPATH": directory, "TEST_PEAKS": str(file)})
        it_fits = _run(script.command(micro_batch), witnessed, _in_its_own_process)
        assert it_fits, f"{script.name} does not fit at {micro_batch}"
        found: dict[str, int] = json.loads(file.read_text(encoding="utf-8"))
        return found


def largest(fits_at: Callable[[int], bool], limit: int = TARGET_BATCH) -> int:
    """The largest size that fits, 0 for none: doubled until one does not, then halved in between."""
    low, high = 0, 1
    while high <= limit and fits_at(high):
        low, high = high, 2 * high
    high = min(high, limit + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits_at(middle) else (low, middle)
    return low


def null_environment(gpu: str | None, *, memory_bytes: int | None = None) -> dict[str, str]:
    """An environment in which a process finds that card, or so much memory, and values that come from the host."""
    base = {**os.environ, "PYTHONPATH": python_path()}
    engine = choose_engine(engine="null", gpu=gpu, device=None, memory_bytes=memory_bytes, base=base)
    return with_agent(engine.environment)


def _in_its_own_process(command: list[str], environment: Mapping[str, str], directory: str) -> CompletedProcess[str]:
    return subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def _in_a_fork(command: list[str], environment: Mapping[str, str], directory: str) -> CompletedProcess[str]:
    """Run a script in a process that has imported torch before it begins."""
    return run_program(command[0], command[1:], environment, timeout=300, cwd=Path(directory))


def _run(
    command: list[str],
    environment: Mapping[str, str],
    run: Callable[[list[str], Mapping[str, str], str], CompletedProcess[str]],
) -> bool:
    with tempfile.TemporaryDirectory() as directory:
        finished = run(command, {**environment, "OOMDOCTOR_RUN_DIRECTORY": f"{directory}/reports"}, directory)
    assert finished.returncode == 0 or _OUT_OF_MEMORY in finished.stderr, finished.stderr[-4000:]
    return finished.returncode == 0
