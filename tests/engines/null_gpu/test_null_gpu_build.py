"""Building the null GPU: once, whole or not at all, and with an error that says what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from clock import within
from hypothesis import given
from hypothesis import strategies as st
from null_gpu_runs import CARD, build_of, each_python

from oomdoctor.engines.installed import TorchBuild
from oomdoctor.engines.null_gpu import library as build_module
from oomdoctor.engines.null_gpu.library import LIBRARY, build_library, environment
from oomdoctor.engines.null_gpu.stubs import answer_of, read_cuda_libraries, stub_source
from oomdoctor.engines.shared_library import read_shared_library
from oomdoctor.errors import NoAnswerError

BUILD_AT = """
import sys
from oomdoctor.engines.null_gpu.library import build_library
from oomdoctor.engines.installed import find_torch
import os
print(build_library(find_torch(), os.environ))
"""


@pytest.fixture
def build() -> TorchBuild:
    """This interpreter's torch."""
    return build_of(sys.executable)


@pytest.fixture
def base(tmp_path: Path) -> dict[str, str]:
    """An environment with a cache of its own."""
    return {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}


def _counting_compiler(directory: Path, *, fail: bool = False) -> tuple[Path, Path]:
    """A compiler that notes each run in a file before it compiles, or fails."""
    log = directory / "runs"
    compiler = directory / "compiler"
    real = shutil.which("cc")
    end = 'echo "cc: something is wrong" >&2; exit 1' if fail else f'exec {real} "$@"'
    compiler.write_text(f"#!/bin/sh\necho run >> {log}\n{end}\n", encoding="utf-8")
    compiler.chmod(0o755)
    return compiler, log


def test_a_second_build_runs_no_compiler(build: TorchBuild, base: dict[str, str], tmp_path: Path) -> None:
    """What is built is found again in milliseconds, without a compiler."""
    compiler, log = _counting_compiler(tmp_path)
    base["CC"] = str(compiler)
    first = build_library(build, base)
    runs = log.read_text(encoding="utf-8")
    with within(0.5):
        assert build_library(build, base) == first
    assert log.read_text(encoding="utf-8") == runs


def test_the_directory_holds_the_library_and_its_names(build: TorchBuild, base: dict[str, str]) -> None:
    """Every soname of a CUDA library that torch loads leads to the one library, and nothing of the build is left."""
    directory = build_library(build, base)
    names = {path.name for path in directory.iterdir()}
    assert {LIBRARY, "libnvidia-ml.so.1", f"libcudart.so.{build.cuda_major}", "libcudnn.so.9"} <= names
    assert {path.resolve() for path in directory.iterdir()} == {directory / LIBRARY}
    assert [path.name for path in directory.parent.iterdir() if ".part-" in path.name] == []


@pytest.mark.null_gpu
@pytest.mark.timeout(300)
def test_eight_at_once_build_once(base: dict[str, str], tmp_path: Path) -> None:
    """Eight processes that start together get the same complete build, and one of them made it."""
    compiler, log = _counting_compiler(tmp_path)
    env = {**os.environ, **base, "CC": str(compiler)}
    command = [sys.executable, "-c", BUILD_AT]
    processes = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) for _ in range(8)]
    outputs = [process.communicate()[0].strip() for process in processes]
    assert [process.returncode for process in processes] == [0] * 8
    assert len(set(outputs)) == 1
    sources = len(list((Path(build_module.__file__).parent / "source").glob("*.c")))
    assert len(log.read_text(encoding="utf-8").splitlines()) == sources + 3  # the stubs, the empty library, the link


def test_a_killed_build_leaves_nothing_that_counts(build: TorchBuild, base: dict[str, str], tmp_path: Path) -> None:
    """A build that dies halfway leaves no directory of the final name, and the next one succeeds and clears up."""
    sleeper = tmp_path / "sleeper"
    sleeper.write_text('#!/bin/sh\ncase "$*" in *-shared*) sleep 60;; esac\nexec cc "$@"\n', encoding="utf-8")
    sleeper.chmod(0o755)
    env = {**os.environ, **base, "CC": str(sleeper)}
    process = subprocess.Popen([sys.executable, "-c", BUILD_AT], env=env, start_new_session=True)
    cache = tmp_path / "cache" / "oomdoctor" / "null-gpu"
    while not list(cache.glob("*.part-*")):
        assert process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, 9)
    process.wait()
    assert [path for path in cache.iterdir() if path.is_dir() and ".part-" not in path.name] == []
    sleeper.write_text('#!/bin/sh\nexec cc "$@"\n', encoding="utf-8")
    assert (build_library(build, {**base, "CC": str(sleeper)}) / LIBRARY).is_file()


def test_a_failing_compiler_is_quoted(build: TorchBuild, base: dict[str, str], tmp_path: Path) -> None:
    """A compiler's last lines are shown, and nothing half-written is left."""
    compiler, _ = _counting_compiler(tmp_path, fail=True)
    with pytest.raises(NoAnswerError, match="could not compile the null GPU") as caught:
        build_library(build, {**base, "CC": str(compiler)})
    assert "something is wrong" in (caught.value.details or "")
    assert [path for path in (tmp_path / "cache" / "oomdoctor" / "null-gpu").iterdir() if path.is_dir()] == []


def test_no_compiler(build: TorchBuild, base: dict[str, str], tmp_path: Path) -> None:
    """Without a compiler the error says which were looked for and how to get one."""
    with pytest.raises(NoAnswerError, match=r"needs a C compiler, and `cc`, `gcc`, `clang` cannot be found") as caught:
        build_library(build, {**base, "PATH": str(tmp_path)})
    assert "apt install gcc" in (caught.value.hint or "")


def test_the_compiler_named_by_cc_is_the_only_one(build: TorchBuild, base: dict[str, str]) -> None:
    """A `CC` that cannot be found is an error, not a reason to take another compiler."""
    with pytest.raises(NoAnswerError, match="`no-such-compiler -x` from `CC` cannot be found"):
        build_library(build, {**base, "CC": "no-such-compiler -x"})


def test_a_cache_that_cannot_be_written(build: TorchBuild, base: dict[str, str], tmp_path: Path) -> None:
    """Where the cache directory cannot be made the error names it and the variable that moves it."""
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(NoAnswerError, match="cannot be built in") as caught:
        build_library(build, {**base, "XDG_CACHE_HOME": str(tmp_path / "file")})
    assert "XDG_CACHE_HOME" in (caught.value.hint or "")


def test_other_sources_are_another_build(
    build: TorchBuild, base: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change of a source, of torch or of the compiler is another build."""
    key = build_module._key(build, ["/bin/cc"])
    assert build_module._key(build, ["/bin/cc"]) == key
    assert build_module._key(build, ["/bin/cc", "-m64"]) != key
    other = TorchBuild(version="1.0", cuda=build.cuda, root=build.root)
    assert build_module._key(other, ["/bin/cc"]) != key
    monkeypatch.setattr(build_module, "_own_sources", lambda: iter([("a.c", b"int a;")]))
    assert build_module._key(build, ["/bin/cc"]) != key
    assert base


@pytest.mark.parametrize(
    ("cuda", "says"),
    [(None, "needs a CUDA build of torch"), ("11.8", "was built for CUDA 11.8"), ("14.0", "serves CUDA 12 and 13")],
)
def test_torch_builds_that_are_not_served(cuda: str | None, says: str, tmp_path: Path) -> None:
    """A CPU build and other CUDA majors get an error that says what to install or use instead."""
    with pytest.raises(NoAnswerError, match=says) as caught:
        environment(CARD, TorchBuild(version="2.0", cuda=cuda, root=tmp_path), {})
    assert (caught.value.hint or "").startswith("install a ")


def test_other_systems(build: TorchBuild, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere than on Linux the error names the system."""
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(NoAnswerError, match="runs on Linux alone, and this is `darwin`"):
        environment(CARD, build, {})


def test_the_environment_keeps_what_it_was_given(build: TorchBuild, base: dict[str, str]) -> None:
    """Preloaded libraries and search paths stay behind the null GPU's own; a choice among real GPUs goes."""
    given = {**base, "LD_PRELOAD": "/a.so", "LD_LIBRARY_PATH": "/b", "CUDA_VISIBLE_DEVICES": "3", "KEPT": "1"}
    result = environment(CARD, build, given)
    directory = Path(result["LD_PRELOAD"].split(":")[0]).parent
    assert result["LD_PRELOAD"] == f"{directory / LIBRARY}:/a.so"
    assert result["LD_LIBRARY_PATH"] == f"{directory}:/b"
    assert (result["KEPT"], "CUDA_VISIBLE_DEVICES" in result) == ("1", False)
    assert given["CUDA_VISIBLE_DEVICES"] == "3"


def test_caches_of_compiled_code_are_the_null_gpus_own(build: TorchBuild, base: dict[str, str], tmp_path: Path) -> None:
    """Inductor and Triton cache under oomdoctor's directory, or a temporary one, and choices by time are forgotten."""
    users = {"TORCHINDUCTOR_CACHE_DIR": "/users/inductor", "TRITON_CACHE_DIR": "/users/triton"}
    result = environment(CARD, build, {**base, **users})
    own = Path(result["LD_PRELOAD"]).parents[2]
    assert Path(result["TORCHINDUCTOR_CACHE_DIR"]).parents[1] == Path(result["TRITON_CACHE_DIR"]).parents[1] == own

    chosen = Path(result["TORCHINDUCTOR_CACHE_DIR"], "ab", "kernel.best_config")
    chosen.parent.mkdir(parents=True)
    chosen.touch()
    environment(CARD, build, {**base, **users})
    assert not chosen.exists()

    shutil.rmtree(own / "compiled-on-null-gpu")
    (own / "compiled-on-null-gpu").touch()
    elsewhere = environment(CARD, build, {**base, **users, "TMPDIR": str(tmp_path)})
    assert {Path(elsewhere[name]).parents[1] for name in users} == {tmp_path}


def test_a_path_that_cannot_be_preloaded(build: TorchBuild, base: dict[str, str], tmp_path: Path) -> None:
    """A cache under a directory with a space in its name is refused with the way out."""
    with pytest.raises(NoAnswerError, match="splits its path at spaces and colons"):
        environment(CARD, build, {**base, "XDG_CACHE_HOME": str(tmp_path / "my cache")})


@each_python
def test_structs_match_the_headers(python: str, tmp_path: Path) -> None:
    """Every field of the properties lies where CUDA's own header puts it, for the CUDA of this torch."""
    build = build_of(python)
    site = build.root.parent
    headers = sorted(site.glob("nvidia/**/include/driver_types.h"))
    triton = site / "triton" / "backends" / "nvidia" / "include"  # has what those of the runtime's wheel include
    if not headers or not (triton / "crt" / "host_defines.h").is_file():
        pytest.skip("no complete CUDA headers beside this torch")
    source = Path(build_module.__file__).parent / "source"
    fields = {
        "name": "name", "uuid": "uuid", "total_global_mem": "totalGlobalMem", "warp_size": "warpSize",
        "max_grid_size": "maxGridSize", "total_const_mem": "totalConstMem", "major": "major", "minor": "minor",
        "multi_processor_count": "multiProcessorCount", "can_map_host_memory": "canMapHostMemory",
        "surface_alignment": "surfaceAlignment", "pci_bus_id": "pciBusID", "unified_addressing": "unifiedAddressing",
        "memory_bus_width": "memoryBusWidth", "l2_cache_size": "l2CacheSize",
        "max_threads_per_multi_processor": "maxThreadsPerMultiProcessor",
        "shared_mem_per_multiprocessor": "sharedMemPerMultiprocessor",
        "regs_per_multiprocessor": "regsPerMultiprocessor", "cooperative_launch": "cooperativeLaunch",
        "shared_mem_per_block_optin": "sharedMemPerBlockOptin",
        "max_blocks_per_multi_processor": "maxBlocksPerMultiProcessor",
        "reserved_shared_mem_per_block": "reservedSharedMemPerBlock",
        "host_register_supported": "hostRegisterSupported", "cluster_launch": "clusterLaunch",
    }  # fmt: skip
    checks = "\n".join(
        f'_Static_assert(offsetof(device_properties, {ours}) == offsetof(struct cudaDeviceProp, {theirs}), "{ours}");'
        for ours, theirs in fields.items()
    )
    program = tmp_path / "layout.c"
    program.write_text(
        f"#include <stddef.h>\n#include <driver_types.h>\n#include <device.c>\n{checks}\n"
        '_Static_assert(sizeof(device_properties) == sizeof(struct cudaDeviceProp), "size");\n',
        encoding="utf-8",
    )
    version = build_module._versions(build)["NULL_CUDA_VERSION"]
    includes = [f"-I{directory}" for directory in (source, headers[0].parent, triton)]
    command = ["cc", "-w", "-fsyntax-only", f"-DNULL_CUDA_VERSION={version}", *includes, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_function_has_an_answer(build: TorchBuild) -> None:
    """Whatever torch's libraries ask of CUDA is among the functions that get a stub."""
    functions = set(read_cuda_libraries(build).functions)
    asked = read_shared_library(build.library_directory / "libtorch_cuda.so").undefined
    wanted = {name for name in asked if name.startswith(("cuda", "cublas", "cudnn", "cusparse", "cufft", "nccl"))}
    assert wanted
    assert wanted <= functions
    assert {"cuMemMap", "nvmlDeviceGetNvLinkRemotePciInfo_v2"} <= functions


@pytest.mark.parametrize(
    ("name", "expected"),
    [("cudaMalloc", 801), ("cuMemMap", 801), ("cublasSgemm_v2", 15), ("cudnnCreate", 3000), ("cufftCreate", 16),
     ("cuFileRead", 5011), ("nvmlInit_v2", 3), ("curl_easy_init", None), ("custom", None), ("malloc", None)],
)  # fmt: skip
def test_a_function_is_known_by_its_library(name: str, expected: int | None) -> None:
    """The first letters tell the library, and with it what it answers to a call that it does not support."""
    assert answer_of(name) == expected


@given(st.from_regex(r"cu(blas|dnn|fft)[A-Z][A-Za-z0-9_]{0,20}", fullmatch=True))
def test_a_stub_reports_its_own_name(name: str) -> None:
    """A stub names the function that was called, or gives a text where its caller will read one."""
    source = stub_source([name])
    assert f" {name}(void)" in source or f"*{name}(void)" in source
    assert f'null_report_unknown("{name}")' in source or 'return "' in source


def test_an_elf_file_is_read_as_the_system_reads_it(build: TorchBuild) -> None:
    """The needed libraries, search path and symbols are found without a tool of the system."""
    library = read_shared_library(build.library_directory / "libc10_cuda.so")
    assert {"libc10.so", f"libcudart.so.{build.cuda_major}"} <= set(library.needed)
    assert str(build.library_directory) in {str(Path(entry)) for entry in library.search_path}
    assert "cudaMalloc" in library.undefined
    assert any("CUDACachingAllocator" in name for name in library.defined)


def test_what_is_no_elf_file_is_refused(tmp_path: Path) -> None:
    """A file that is no shared library is named in the error."""
    path = tmp_path / "library.so"
    path.write_text("INPUT(libc.so)", encoding="utf-8")
    with pytest.raises(ValueError, match="is not a 64-bit ELF file"):
        read_shared_library(path)
