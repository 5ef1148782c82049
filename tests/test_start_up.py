"""The parent process is light: nothing that only the worker needs is imported before it is needed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "numpy", "jinja2", "pynvml", "GPUtil", "tomllib")


def _loaded(code: str) -> set[str]:
    """Names of the top-level modules that are loaded once `code` has run, in an interpreter of its own."""
    program = f"{code}\nimport sys; print('\\n' + ' '.join(sys.modules))"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in ended.stdout.splitlines()[-1].split()}


def test_help_imports_nothing_heavy() -> None:
    """`oomdoctor --help` starts without torch, NVML or a TOML parser."""
    assert _loaded("from oomdoctor.cli import main; main(['--help'])").isdisjoint(HEAVY)


def test_the_catalogue_is_listed_without_torch() -> None:
    """`oomdoctor gpus --known` reads the catalogue and nothing else."""
    loaded = _loaded("from oomdoctor.cli import main; main(['gpus', '--known'])")

    assert "tomllib" in loaded
    assert loaded.isdisjoint(set(HEAVY) - {"tomllib"})


@pytest.mark.null_gpu
def test_a_whole_probe_leaves_the_parent_without_torch() -> None:
    """The process that the user started never imports torch, a probe included."""
    arguments = ["probe", "lstm", "--target-batch", "2", "--capacity", "4GiB", "--engine", "null", "--quiet"]

    loaded = _loaded(f"from oomdoctor.cli import main; assert main({arguments!r}) == 0")

    assert "torch" not in loaded


def test_an_interrupt_while_modules_are_imported_is_told_in_a_word(tmp_path: Path) -> None:
    """Before the command line is there, an interrupt ends with 130 and no traceback."""
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt\n")
    ended = subprocess.run(
        [sys.executable, "-m", "oomdoctor", "--help"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "interrupted\n")
