"""The monitor against a real shared library in NVML's place and a real `nvidia-smi` on the PATH."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import oomdoctor
from oomdoctor.engines.local_gpus import GpuProcess, LocalGpu, SourceError, read_nvidia_smi
from oomdoctor.engines.monitor import cuda_device, cuda_devices, held_by_others
from oomdoctor.units import MIB

SOURCE = Path(__file__).with_name("simulated_nvml.c")
PACKAGE_PARENT = Path(oomdoctor.__file__).parents[1]
UUIDS = [f"GPU-{index:08d}-1111-2222-3333-444444444444" for index in range(3)]
SMI_LINE = "0, GPU-1, 35, 24564, 1536, 22628, 550.54, NVIDIA GeForce RTX 4090, N/A, Disabled, Disabled, 41"

needs_compiler = pytest.mark.skipif(shutil.which("gcc") is None, reason="the simulated NVML is compiled with gcc")

READ = """
import json
from dataclasses import asdict
from oomdoctor.engines.monitor import read_gpus
from oomdoctor.errors import OomdoctorError
try:
    print(json.dumps(asdict(read_gpus())))
except OomdoctorError as error:
    print(json.dumps({"message": error.message, "details": error.details, "hint": error.hint, "code": error.exit_code}))
"""


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that is first on the PATH, for a `nvidia-smi` to be put into."""
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
    return directory


def write_smi(directory: Path, script: str) -> None:
    """Put a `nvidia-smi` there that is a shell script."""
    path = directory / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)


def build_nvml(directory: Path, *defines: str) -> Path:
    """Compile the stand-in for NVML into a directory of its own, and return the directory."""
    directory = directory / "nvml"
    directory.mkdir()
    library = directory / "libnvidia-ml.so.1"
    flags = [f"-D{define}" for define in defines]
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wall", *flags, "-o", library, SOURCE], check=True)
    return directory


def run_child(script: str, library_directory: Path, **environment: str) -> Any:
    """Run Python code with that NVML and return the JSON that it printed last."""
    finished = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        cwd=PACKAGE_PARENT,
        env={**os.environ, "LD_LIBRARY_PATH": str(library_directory), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert finished.returncode == 0, finished.stderr
    assert not finished.stderr
    return json.loads(finished.stdout.splitlines()[-1])


def local_gpu(index: int = 0, **changes: Any) -> LocalGpu:
    """One of several equal GPUs."""
    fields = {
        "index": index,
        "uuid": UUIDS[index],
        "name": "NVIDIA L4",
        "total_bytes": 1000,
        "used_bytes": 600,
        "free_bytes": 400,
        "reserved_bytes": 0,
        "utilisation_percent": 0,
        "processes": (),
        "source": "nvml",
    }
    return LocalGpu(**{**fields, **changes})


# NVML ----------------------------------------------------------------------------------------------------------------


@needs_compiler
def test_nvml_gives_memory_without_the_drivers_reserve_and_each_process_once(tmp_path: Path) -> None:
    """What a current driver tells is taken over to the byte."""
    reading = run_child(READ, build_nvml(tmp_path), STAND_IN_PID="99999990")
    assert reading["notes"] == []
    assert reading["gpus"][0] == {
        "index": 0,
        "uuid": "GPU-00000000-1111-2222-3333-444444444444",
        "name": "NVIDIA GeForce RTX 4090",
        "total_bytes": 24564 * MIB,
        "used_bytes": 1536 * MIB,
        "free_bytes": 22628 * MIB,
        "reserved_bytes": 400 * MIB,
        "utilisation_percent": 0,
        "processes": [
            {"pid": 99999990, "name": None, "used_bytes": 1024 * MIB},
            {"pid": 99999991, "name": "/usr/bin/\x1b[31mXorg", "used_bytes": 256 * MIB},
        ],
        "source": "nvml",
        "error": None,
    }


@needs_compiler
def test_what_a_gpu_does_not_support_is_unknown_and_no_error(tmp_path: Path) -> None:
    """A GPU that shares the system's memory has no figure of its own."""
    gpu = run_child(READ, build_nvml(tmp_path))["gpus"][1]
    assert gpu["name"] == "NVIDIA GB10"
    unknown = ("total_bytes", "used_bytes", "free_bytes", "reserved_bytes", "utilisation_percent", "processes", "error")
    assert [gpu[field] for field in unknown] == [None] * 7


@needs_compiler
@pytest.mark.parametrize("generation", ["OLD", "V2_FAILS"])
def test_an_older_memory_call_is_used_where_the_newer_fails(tmp_path: Path, generation: str) -> None:
    """The reserve is then within what is used, and said to be unknown."""
    gpu = run_child(READ, build_nvml(tmp_path, generation))["gpus"][0]
    assert (gpu["used_bytes"], gpu["reserved_bytes"], gpu["error"]) == (1936 * MIB, None, None)
    assert len(gpu["processes"]) == 2


@needs_compiler
def test_a_lost_gpu_is_a_row_and_the_others_are_still_read(tmp_path: Path) -> None:
    """One GPU that fell off the bus must not hide the rest."""
    gpus = run_child(READ, build_nvml(tmp_path, "LOST"))["gpus"]
    assert [gpu["error"] for gpu in gpus] == [None, "GPU is lost"]
    assert gpus[0]["used_bytes"] == 1536 * MIB


@needs_compiler
def test_nvidia_smi_is_asked_where_the_driver_is_not_loaded(tmp_path: Path, smi: Path) -> None:
    """The first source's failure is told as a note."""
    write_smi(smi, f"echo '{SMI_LINE}'")
    reading = run_child(READ, build_nvml(tmp_path, "NO_DRIVER"))
    assert [gpu["source"] for gpu in reading["gpus"]] == ["nvidia-smi"]
    assert reading["notes"] == ["NVML: NVML does not start: Driver Not Loaded"]


@needs_compiler
def test_without_any_gpu_each_source_says_why(tmp_path: Path, smi: Path) -> None:
    """The error has what was tried, why each failed, and what works without a GPU."""
    write_smi(smi, "echo 'No devices were found'; exit 6")
    answer = run_child(READ, build_nvml(tmp_path, "EMPTY"))
    assert answer["code"] == 3
    assert answer["details"].splitlines() == [
        "NVML: it answers, and lists no GPU",
        "nvidia-smi: `nvidia-smi` answers: No devices were found",
    ]
    assert "--gpu rtx-4090" in answer["hint"]


def test_a_library_that_cannot_be_loaded_counts_as_no_driver(tmp_path: Path, smi: Path) -> None:
    """A broken installation is told, not raised."""
    write_smi(smi, "exit 9")
    (tmp_path / "libnvidia-ml.so.1").write_text("not a library")
    answer = run_child(READ, tmp_path)
    assert "`libnvidia-ml.so.1` is not installed" in answer["details"]


@needs_compiler
def test_the_deprecated_bindings_are_noted_without_a_warning(tmp_path: Path) -> None:
    """The distribution `pynvml` warns at each import; its presence alone is told once, with what to do."""
    shell = tmp_path / "site" / "pynvml-13.0.1.dist-info"
    shell.mkdir(parents=True)
    (shell / "METADATA").write_text("Metadata-Version: 2.1\nName: pynvml\nVersion: 13.0.1\n")
    warning = "import warnings; warnings.warn('pynvml is deprecated', FutureWarning)\n"
    bindings = Path(pytest.importorskip("pynvml").__file__).read_text(encoding="utf-8")
    (tmp_path / "site" / "pynvml.py").write_text(warning + bindings, encoding="utf-8")
    reading = run_child(READ, build_nvml(tmp_path), PYTHONPATH=str(tmp_path / "site"))
    assert len(reading["gpus"]) == 2
    (note,) = reading["notes"]
    assert "`pip uninstall pynvml`" in note


# nvidia-smi ----------------------------------------------------------------------------------------------------------


def test_nvidia_smi_gives_bytes_and_percent(smi: Path) -> None:
    """GPUtil counts in MiB and fractions."""
    write_smi(smi, f"echo '{SMI_LINE}'")
    (gpu,) = read_nvidia_smi()
    assert asdict(gpu) == {
        "index": 0,
        "uuid": "GPU-1",
        "name": "NVIDIA GeForce RTX 4090",
        "total_bytes": 24564 * MIB,
        "used_bytes": 1536 * MIB,
        "free_bytes": 22628 * MIB,
        "reserved_bytes": None,
        "utilisation_percent": 35,
        "processes": None,
        "source": "nvidia-smi",
        "error": None,
    }


def test_what_nvidia_smi_does_not_know_is_none(smi: Path) -> None:
    """`[N/A]` becomes NaN in GPUtil, and NaN must not become a number of bytes."""
    write_smi(smi, "echo '1, GPU-2, [N/A], [N/A], [N/A], [N/A], 580.1, NVIDIA GB10, N/A, Off, Off, 41'")
    (gpu,) = read_nvidia_smi()
    assert gpu.name == "NVIDIA GB10"
    assert (gpu.total_bytes, gpu.used_bytes, gpu.free_bytes, gpu.utilisation_percent) == (None, None, None, None)


def test_nvidia_smi_without_a_gpu_lists_none(smi: Path) -> None:
    """Silence is an empty list."""
    write_smi(smi, "exit 0")
    assert read_nvidia_smi() == ()


BROKEN_DRIVER = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("echo 'No devices were found'", "`nvidia-smi` answers: No devices were found"),
        (f'echo "{BROKEN_DRIVER}"; exit 9', f"`nvidia-smi` answers: {BROKEN_DRIVER}"),
        ("echo '0, GPU-1, 0, 0, 0, 0, 1, X, 0, 0, 0, 0'", "`nvidia-smi` reports a GPU with no memory at all"),
        ("echo '0, GPU-1'", "GPUtil cannot read what `nvidia-smi` answers (IndexError: list index out of range)"),
        (r"printf '\377\n'", "GPUtil cannot read what `nvidia-smi` answers (UnicodeDecodeError"),
    ],
)
def test_what_nvidia_smi_says_instead_of_a_list_is_passed_on(smi: Path, script: str, problem: str) -> None:
    """A person reads the driver's words, not the parser's."""
    write_smi(smi, script)
    with pytest.raises(SourceError) as failure:
        read_nvidia_smi()
    assert str(failure.value).startswith(problem)


def test_a_missing_nvidia_smi_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUtil alone would report no GPU, as if somebody had looked."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SourceError, match="`nvidia-smi` is not on the PATH"):
        read_nvidia_smi()


def test_gputil_that_cannot_be_imported_is_told(smi: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs distutils, which newer Pythons have no more."""
    write_smi(smi, f"echo '{SMI_LINE}'")
    (tmp_path / "GPUtil.py").write_text("raise ModuleNotFoundError(\"No module named 'distutils'\")")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(SourceError, match="cannot be imported: No module named 'distutils'"):
        read_nvidia_smi()


def test_noise_and_warnings_before_the_answer_are_passed_over(
    smi: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPUtil prints what it likes, and importing distutils warns."""
    write_smi(smi, "exit 0")
    warning = "import warnings; warnings.warn('distutils', DeprecationWarning)"
    (tmp_path / "GPUtil.py").write_text(f"print('noise', end='')\n{warning}\ndef getGPUs(): return []")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    assert read_nvidia_smi() == ()


def test_a_gputil_that_dies_is_told(smi: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash of the child is no crash of ours."""
    write_smi(smi, "exit 0")
    (tmp_path / "GPUtil.py").write_text("import os\nos._exit(3)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(SourceError, match="ended without an answer"):
        read_nvidia_smi()


def test_an_nvidia_smi_that_hangs_is_ended_with_all_it_started(smi: Path) -> None:
    """A broken driver can block nvidia-smi for ever."""
    write_smi(smi, f"echo $$ > {smi}/pid\nexec sleep 60")
    with pytest.raises(SourceError, match="did not answer within 4 seconds"):
        read_nvidia_smi(timeout_seconds=4)
    pid = int((smi / "pid").read_text())
    deadline = time.monotonic() + 10
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(pid)


def is_running(pid: int) -> bool:
    """Whether the process is there and not merely waiting to be collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# CUDA's view ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("visible", "indices"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("2,0", [2, 0]),
        (" 1 , 2 ", [1, 2]),
        ("1,7,0", [1]),
        ("1,x,0", [1]),
        ("1,1", []),
        (UUIDS[1], [1]),
        ("GPU-00000002,GPU-00000000", [2, 0]),
        ("GPU-0", []),
    ],
)
def test_cuda_visible_devices_selects_and_orders(visible: str | None, indices: list[int]) -> None:
    """As the CUDA runtime reads it: a wrong entry ends the list, a repeated one empties it."""
    gpus = [local_gpu(index) for index in range(3)]
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    seen = cuda_devices(gpus, environment)
    assert seen is not None
    assert [gpu.index for gpu in seen] == indices


def test_indices_cannot_be_told_where_cuda_sorts_by_speed() -> None:
    """CUDA counts different models with the fastest first, unless it is told to go by the bus."""
    gpus = [local_gpu(0, name="NVIDIA T4"), local_gpu(1, name="NVIDIA L4")]
    assert cuda_devices(gpus, {}) is None
    assert cuda_devices(gpus, {"CUDA_VISIBLE_DEVICES": "0"}) is None
    assert cuda_devices(gpus, {"CUDA_VISIBLE_DEVICES": UUIDS[1]}) == (gpus[1],)
    assert cuda_devices(gpus, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}) == tuple(gpus)
    assert cuda_devices(gpus, {"CUDA_VISIBLE_DEVICES": "MIG-1"}) is None


def test_a_device_is_found_by_cudas_index_or_by_uuid() -> None:
    """A UUID means the same GPU whatever is visible; PyTorch prints it without `GPU-`."""
    gpus = [local_gpu(index) for index in range(3)]
    environment = {"CUDA_VISIBLE_DEVICES": "2,0"}
    assert cuda_device(gpus, 0, environment) is gpus[2]
    assert cuda_device(gpus, "1", environment) is gpus[0]
    assert cuda_device(gpus, 2, environment) is None
    assert cuda_device(gpus, -1, environment) is None
    assert cuda_device(gpus, UUIDS[1].removeprefix("GPU-").upper(), environment) is gpus[1]
    assert cuda_device(gpus, "GPU-elsewhere", environment) is None


@given(st.text(alphabet="0123456789,-GPUMI xyz", max_size=40), st.booleans())
def test_any_cuda_visible_devices_gives_distinct_gpus(visible: str, by_bus: bool) -> None:
    """Whatever stands there, nothing is raised and no GPU comes twice."""
    gpus = [local_gpu(index) for index in range(3)]
    environment = {"CUDA_VISIBLE_DEVICES": visible, **({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if by_bus else {})}
    seen = cuda_devices(gpus, environment)
    assert seen is None or len({gpu.index for gpu in seen}) == len(seen)


# Other processes -----------------------------------------------------------------------------------------------------


def test_memory_of_others_is_all_that_is_not_own() -> None:
    """Memory that no listed process accounts for is somebody else's."""
    gpu = local_gpu(processes=(GpuProcess(7, "mine", 100), GpuProcess(8, "theirs", 200)))
    assert held_by_others(gpu) == 600
    assert held_by_others(gpu, {7}) == 500
    assert held_by_others(gpu, {7, 8}) == 300


def test_others_are_not_blamed_for_the_drivers_reserve() -> None:
    """Where the reserve is within what is used, only listed processes count."""
    processes = (GpuProcess(7, "mine", 100), GpuProcess(8, "theirs", 200))
    assert held_by_others(local_gpu(reserved_bytes=None, processes=processes), {7}) == 200
    assert held_by_others(local_gpu(reserved_bytes=None), {7}) == 0


def test_memory_of_others_is_unknown_where_nobody_tells() -> None:
    """An unknown figure is never taken for none."""
    untold = GpuProcess(8, "theirs", None)
    assert held_by_others(local_gpu(reserved_bytes=None, processes=(untold,)), {7}) is None
    assert held_by_others(local_gpu(used_bytes=None, processes=(untold,))) is None
    assert held_by_others(local_gpu(processes=None), {7}) is None
    assert held_by_others(local_gpu(processes=None)) == 600


OWN_MEMORY = """
import json, os, subprocess, sys
from oomdoctor.engines.monitor import has_local_gpu, other_process_bytes
if os.environ["HOLDER"] == "child":
    holder = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    os.environ["STAND_IN_PID"] = str(holder.pid)
else:
    holder = None
    os.environ["STAND_IN_PID"] = str(os.getpid())
try:
    own = {os.getpid()}
    print(json.dumps([
        other_process_bytes(0, own_pids=own),
        other_process_bytes("GPU-00000000-1111-2222-3333-444444444444", own_pids=own),
        other_process_bytes("0"),
        other_process_bytes(1, own_pids=own),
        other_process_bytes(9, own_pids=own),
        has_local_gpu(),
        has_local_gpu({"CUDA_VISIBLE_DEVICES": ""}),
    ]))
finally:
    if holder is not None:
        holder.kill()
        holder.wait()
"""


@needs_compiler
@pytest.mark.parametrize("holder", ["self", "child"])
def test_own_memory_and_that_of_own_children_is_not_others(tmp_path: Path, holder: str) -> None:
    """The worker of a probe is a child, and its memory must not count as a stranger's."""
    environment = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "HOLDER": holder}
    answer = run_child(OWN_MEMORY, build_nvml(tmp_path), **environment)
    assert answer == [512 * MIB, 512 * MIB, 1536 * MIB, None, None, True, False]
