"""The sweeps of the documentation run as they stand, with the real Optuna and the real Ray."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from documentation import FILES
from running import ROOT

pytestmark = [pytest.mark.null_gpu, pytest.mark.slow]

SMALL = 'ray.init("local", num_cpus=2, object_store_memory=100 * 2**20, include_dashboard=False, log_to_driver=False, '


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The reader's directory, which is the working directory."""
    for name in ("model.py", "training.py", "optuna_sweep.py"):
        (tmp_path / name).write_text(FILES[name])
    (tmp_path / "ray_sweep.py").write_text(FILES["ray_sweep.py"].replace("ray.init(", SMALL))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("forked_workers")
def test_the_sweep_of_optuna(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Widths that fit complete with the target batch, and the one that does not is pruned."""
    monkeypatch.syspath_prepend(str(folder))
    for name in ("model", "training"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    runpy.run_path("optuna_sweep.py")
    for name in ("model", "training"):
        del sys.modules[name]
    lines = Counter(capsys.readouterr().out.splitlines())
    assert set(lines) == {"COMPLETE 512 256", "COMPLETE 2048 256", "PRUNED 200000 0"}
    assert lines.total() == 8


@pytest.mark.timeout(720)  # 40 s alone, and minutes where other processes load the machine
def test_the_sweep_of_ray(folder: Path) -> None:
    """What fits has the target batch on either card; all trials complete, with files that travelled with the job."""
    cache = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    own = {"HOME": str(folder), "XDG_CACHE_HOME": cache, "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}
    command = [sys.executable, "-W", "ignore", "ray_sweep.py"]
    ran = subprocess.run(command, env={**os.environ, **own}, capture_output=True, text=True, timeout=700, check=False)
    assert ran.returncode == 0, ran.stderr
    shown = {line for line in ran.stdout.splitlines() if line.endswith((" 256", " 0"))}
    assert shown == {"512 t4 True 256", "512 a10g True 256", "200000 t4 False 0", "200000 a10g False 0"}
