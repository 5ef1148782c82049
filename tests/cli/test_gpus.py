"""`oomdoctor gpus` from the outside: what it prints, where, and how it exits."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import oomdoctor

if TYPE_CHECKING:
    from collections.abc import Callable

PACKAGE_PARENT = Path(oomdoctor.__file__).parents[1]
NVML_SOURCE = Path(__file__).parents[1] / "engines" / "simulated_nvml.c"

needs_compiler = pytest.mark.skipif(shutil.which("gcc") is None, reason="the stand-in for NVML is compiled with gcc")


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `oomdoctor gpus` where neither NVML nor nvidia-smi can be had, unless the test changes that."""
    (tmp_path / "libnvidia-ml.so.1").write_text("not a library")
    (tmp_path / "bin").mkdir()
    base = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "FORCE_COLOR", "NO_COLOR"}}

    def call(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "oomdoctor", "gpus", *arguments],
            cwd=PACKAGE_PARENT,
            env={**base, "LD_LIBRARY_PATH": str(tmp_path), "PATH": str(tmp_path / "bin"), **environment},
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=False,
            timeout=60,
        )

    return call


@pytest.fixture
def nvml(tmp_path: Path) -> Callable[..., None]:
    """Put the stand-in for NVML where the dynamic linker finds it."""

    def build(*defines: str) -> None:
        flags = [f"-D{define}" for define in defines]
        library = tmp_path / "libnvidia-ml.so.1"
        subprocess.run(["gcc", "-shared", "-fPIC", *flags, "-o", library, NVML_SOURCE], check=True)

    return build


def document(finished: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The one JSON document on stdout, its envelope checked."""
    data = json.loads(finished.stdout)
    assert list(data) == ["schema_version", "command", "status", "exit_code", "versions", "result"]
    assert (data["schema_version"], data["command"]) == (1, "gpus")
    assert data["exit_code"] == finished.returncode
    return dict(data)


def test_known_lists_every_card_with_its_memory_and_what_is_usable(run: Callable[..., Any]) -> None:
    """The catalogue is on stdout, and nothing is on stderr."""
    finished = run("--known")
    assert (finished.returncode, finished.stderr) == (0, "")
    lines = finished.stdout.splitlines()
    assert lines[0].split() == ["--gpu", "name", "memory", "usable", "cc"]
    (row,) = [line for line in lines if line.startswith("rtx-4090 ")]
    assert row.split("  ")[0] == "rtx-4090"
    assert "NVIDIA GeForce RTX 4090" in row
    assert row.split()[-5:] == ["23.64", "GiB", "23.20", "GiB", "8.9"]
    assert f"{lines.index('') - 2} cards" in lines


def test_known_fits_a_narrow_terminal(run: Callable[..., Any]) -> None:
    """Where it is narrow, the longest column goes and no line wraps."""
    lines = run("--known", COLUMNS="80").stdout.splitlines()
    table = lines[: lines.index("")]
    assert table[0].split() == ["--gpu", "memory", "usable", "cc"]
    assert max(map(len, table)) <= 80


def test_known_can_be_printed_where_there_is_no_unicode(run: Callable[..., Any]) -> None:
    """An old terminal gets dashes."""
    finished = run("--known", PYTHONIOENCODING="ascii")
    assert finished.returncode == 0
    assert finished.stdout.isascii()
    assert "-----" in finished.stdout
    assert "?" not in finished.stdout


def test_known_as_json_has_the_source_of_each_number(run: Callable[..., Any]) -> None:
    """What the table leaves out is in the document."""
    finished = run("--known", "--json")
    found = document(finished)
    assert (found["status"], finished.stderr) == ("known", "")
    (card,) = [card for card in found["result"]["cards"] if card["key"] == "t4"]
    assert card["compute_capability"] == "7.5"
    assert card["capacity_bytes"] == card["total_bytes"] - card["context_bytes"]
    assert card["total_source"]
    assert card["context_source"]


def test_known_imports_no_torch(tmp_path: Path) -> None:
    """Torch takes seconds to import, the catalogue milliseconds."""
    report = tmp_path / "modules"
    code = (
        "import pathlib, sys\nfrom oomdoctor.cli import main\ncode = main(['gpus', '--known'])\n"
        f"pathlib.Path({str(report)!r}).write_text(' '.join(sys.modules))\nsys.exit(code)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=PACKAGE_PARENT, check=True, capture_output=True, timeout=60)
    modules = set(report.read_text().split())
    assert "oomdoctor.engines.catalogue" in modules
    assert not {"torch", "pynvml", "GPUtil"} & modules


def test_without_a_gpu_a_page_says_what_was_tried_and_what_works(run: Callable[..., Any]) -> None:
    """Exit code 3, the page on stderr, stdout empty."""
    finished = run()
    assert (finished.returncode, finished.stdout) == (3, "")
    assert "no NVIDIA GPU can be read on this machine" in finished.stderr
    assert "NVML: the NVIDIA driver's library `libnvidia-ml.so.1` is not installed" in finished.stderr
    assert "nvidia-smi: `nvidia-smi` is not on the PATH" in finished.stderr
    assert "--gpu rtx-4090" in finished.stderr
    assert "Traceback" not in finished.stderr


def test_without_a_gpu_json_is_still_a_document(run: Callable[..., Any]) -> None:
    """A program learns the same from stdout."""
    found = document(run("--json"))
    assert (found["status"], found["exit_code"]) == ("no_gpu", 3)
    assert found["result"]["gpus"] == []
    assert len(found["result"]["notes"]) == 2


@needs_compiler
def test_local_gpus_are_shown_with_who_holds_their_memory(run: Callable[..., Any], nvml: Callable[..., None]) -> None:
    """Memory, utilisation and processes; what a GPU does not tell is unknown."""
    nvml()
    finished = run(STAND_IN_PID="99999990")
    assert (finished.returncode, finished.stderr) == (0, "")
    lines = [line.split() for line in finished.stdout.splitlines()]
    assert ["0", "NVIDIA", "GeForce", "RTX", "4090", "23.99", "GiB", "1.50", "GiB", "22.10", "GiB", "0", "%"] in lines
    assert ["1", "NVIDIA", "GB10", "unknown", "unknown", "unknown", "unknown"] in lines
    assert ["0", "99999990", "1.00", "GiB", "unknown"] in lines
    assert ["processes:", "unknown", "for", "GPU", "1"] in lines


@needs_compiler
def test_a_processs_name_cannot_command_the_terminal(run: Callable[..., Any], nvml: Callable[..., None]) -> None:
    """Control characters are replaced; the stand-in has a process with a colour in its name."""
    nvml()
    finished = run()
    assert "/usr/bin/?[31mXorg" in finished.stdout
    assert "\x1b" not in finished.stdout


@needs_compiler
def test_a_lost_gpu_says_so_in_its_row(run: Callable[..., Any], nvml: Callable[..., None]) -> None:
    """The other GPU is shown as ever."""
    nvml("LOST")
    finished = run()
    assert finished.returncode == 0
    assert "unknown (cannot be read: GPU is lost)" in finished.stdout
    assert "NVIDIA GeForce RTX 4090" in finished.stdout


@needs_compiler
def test_local_gpus_as_json_have_whole_bytes(run: Callable[..., Any], nvml: Callable[..., None]) -> None:
    """What is unknown is null."""
    nvml()
    found = document(run("--json"))
    assert (found["status"], found["exit_code"]) == ("read", 0)
    first, second = found["result"]["gpus"]
    assert first["used_bytes"] == 1536 * 1024**2
    assert first["processes"][0]["used_bytes"] == 1024**3
    assert second["total_bytes"] is None


def test_nvidia_smi_stands_in_for_nvml_with_a_note(run: Callable[..., Any], tmp_path: Path) -> None:
    """The table is on stdout, the reason for the second choice on stderr."""
    smi = tmp_path / "bin" / "nvidia-smi"
    line = "0, GPU-1, 35, 24564, 1536, 22628, 550.54, NVIDIA GeForce RTX 4090, N/A, Disabled, Disabled, 41"
    smi.write_text(f"#!/bin/sh\necho '{line}'\n")
    smi.chmod(0o755)
    finished = run()
    assert finished.returncode == 0
    assert "35 %" in finished.stdout
    assert "processes: unknown for GPU 0" in finished.stdout
    assert finished.stderr.startswith("note: NVML: ")


def test_help_names_both_flags(run: Callable[..., Any]) -> None:
    """Both are in the help."""
    finished = run("--help", TERM="dumb", COLUMNS="200")
    assert finished.returncode == 0
    assert "--known" in finished.stdout
    assert "--json" in finished.stdout
