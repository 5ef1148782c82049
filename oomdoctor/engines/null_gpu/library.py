"""The null GPU as a library: compiled once for each torch build, preloaded into processes, controlled from inside them.

A build is made in a directory beside the final one and renamed, so a directory of the final name is complete. The key
of a build covers all its inputs, so a finished one is found by a few `stat` calls. Nothing here imports torch.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from oomdoctor.engines.cudnn import COMMAND
from oomdoctor.engines.cudnn_library import cudnn_variables
from oomdoctor.engines.installed import cache_directory, compile_all, find_compiler, wheel_version
from oomdoctor.errors import NoAnswerError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from oomdoctor.engines.catalogue import Card
    from oomdoctor.engines.installed import TorchBuild
    from oomdoctor.engines.null_gpu.stubs import CudaLibraries


LIBRARY = "libcuda.so.1"
# By path: `importlib.resources` takes longer to import than the sources to read.
_SOURCE = Path(__file__).with_name("source")
SERVED_CUDA_MAJORS = (12, 13)
_FLAGS = ("-std=gnu11", "-O1", "-w", "-fPIC", "-fvisibility=hidden", "-pthread")
# Thousands of functions of one line each: optimising them would take most of the time and gain nothing.
_STUB_FLAGS = ("-O0", "-fno-asynchronous-unwind-tables")
# For libraries that were not installed from a wheel, so that their version is not known.
_DEFAULT_CUDNN = 91000
_DEFAULT_NCCL = 22105


def build_library(build: TorchBuild, base: Mapping[str, str]) -> Path:
    """Compile the null GPU for a torch build, unless it is compiled already.

    Args:
        build: The torch that will run on it.
        base: Environment that names the compiler (`CC`) and the cache directory (`XDG_CACHE_HOME`).

    Returns:
        The directory of `libcuda.so.1` and of the other names it goes by.

    Raises:
        NoAnswerError: There is no C compiler, it failed, or the cache directory cannot be written.
    """
    compiler = find_compiler(base)
    root = cache_directory(base) / "null-gpu"
    destination = root / _key(build, compiler)
    if destination.is_dir():
        return destination
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _lock(root / f"{destination.name}.lock"):
            if not destination.is_dir():
                for abandoned in destination.parent.glob(f"{destination.name}.part-*"):
                    shutil.rmtree(abandoned, ignore_errors=True)
                part = Path(tempfile.mkdtemp(prefix=f"{destination.name}.part-", dir=destination.parent))
                try:
                    _build_into(part, build, compiler)
                    part.rename(destination)
                finally:
                    shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        raise _unwritable(root, error) from error
    return destination


def _unwritable(directory: Path, error: OSError) -> NoAnswerError:
    return NoAnswerError(
        f"the null GPU cannot be built in `{directory}`: {error}",
        hint="set `XDG_CACHE_HOME` to a directory that you may write to",
    )


def _key(build: TorchBuild, compiler: list[str]) -> str:
    digest = hashlib.sha256()
    for name, content in sorted(_own_sources()):
        digest.update(name.encode() + b"\0" + content + b"\0")
    for text in (build.version, str(build.cuda), str(build.root), str(_versions(build)), *compiler):
        digest.update(text.encode() + b"\0")
    for path in (Path(compiler[0]), *sorted(build.library_directory.glob("lib*.so"))):
        status = path.stat()
        digest.update(f"{path.name} {status.st_size} {status.st_mtime_ns}\0".encode())
    return digest.hexdigest()[:20]


def _own_sources() -> Iterator[tuple[str, bytes]]:
    """Yield name and content of the C sources and of the Python that generates and compiles."""
    for path in (*_SOURCE.iterdir(), *(_SOURCE.with_name(name) for name in ("library.py", "stubs.py"))):
        yield path.name, path.read_bytes()


def _versions(build: TorchBuild) -> dict[str, int]:
    """Return the version numbers that the libraries report."""
    major, minor = (int(part) for part in f"{build.cuda}.0".split(".")[:2])
    cuda = 1000 * major + 10 * minor
    cudnn = wheel_version(build, "cudnn")
    cublas = wheel_version(build, "cublas")
    nccl = wheel_version(build, "nccl")
    return {
        "NULL_CUDA_VERSION": cuda,
        "NULL_CUDNN_VERSION": cudnn[0] * 10000 + cudnn[1] * 100 + cudnn[2] if cudnn else _DEFAULT_CUDNN,
        "NULL_CUBLAS_VERSION": cublas[0] * 10000 + cublas[1] * 100 + cublas[2] if cublas else 10 * cuda,
        "NULL_NCCL_VERSION": nccl[0] * 10000 + nccl[1] * 100 + nccl[2] if nccl else _DEFAULT_NCCL,
    }


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold a lock file, so that one process builds; the lock ends with its process."""
    with path.open("w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build_into(directory: Path, build: TorchBuild, compiler: list[str]) -> None:
    # A finished build needs none of it.
    from oomdoctor.engines.null_gpu.stubs import read_cuda_libraries, stub_source  # noqa: PLC0415

    libraries = read_cuda_libraries(build)
    work = directory / "work"
    names = work / "names"
    names.mkdir(parents=True)
    (work / "stubs.c").write_text(stub_source(libraries.functions), encoding="utf-8")
    macros = [f"-D{name}={value}" for name, value in _versions(build).items()]
    sources = [*sorted(_SOURCE.glob("*.c")), work / "stubs.c"]
    flags = [*_FLAGS, *macros, f"-I{_SOURCE}"]
    objects = [work / f"{source.stem}.o" for source in sources]
    commands = [
        [*compiler, *flags, *(_STUB_FLAGS if source.parent == work else ()), "-c", str(source), "-o", str(target)]
        for source, target in zip(sources, objects, strict=True)
    ]
    compile_all(commands)
    _link(compiler, directory / LIBRARY, objects, libraries, names)
    for soname in libraries.sonames:
        if soname != LIBRARY:
            (directory / soname).symlink_to(LIBRARY)
    shutil.rmtree(work)


def _link(compiler: list[str], library: Path, objects: list[Path], libraries: CudaLibraries, names: Path) -> None:
    """Link one library that answers to every soname.

    It is listed as needing every other name, and each of these is a link to itself. So the loader, which knows
    libraries by inode, gives the one library all the names and never opens the real ones, which would double what an
    import of torch takes of the host's memory.
    """
    others = [soname for soname in libraries.sonames if soname != LIBRARY]
    empty = names / "empty.so"
    compile_all([[*compiler, "-shared", "-nostdlib", "-x", "c", os.devnull, "-o", str(empty)]])
    for soname in others:
        shutil.copyfile(empty, names / soname)
    compile_all(
        [[
            *compiler, *_FLAGS, "-shared", "-o", str(library), *map(str, objects),
            f"-Wl,-soname,{LIBRARY}", "-Wl,-Bsymbolic", "-Wl,-rpath,$ORIGIN", "-Wl,--enable-new-dtags",
            "-ldl", "-lpthread", f"-L{names}", "-Wl,--no-as-needed", *(f"-l:{soname}" for soname in others),
        ]]
    )  # fmt: skip


# The dynamic linker splits LD_PRELOAD at these.
_SEPARATORS = (" ", ":", "\t", "\n")
# Where cuDNN cannot be asked, convolutions go through its older interface, in which the null GPU gives them no
# workspace; the tensors that PyTorch makes are the same. And attention is flash attention, where PyTorch 2.11 and later
# would take cuDNN's for half precision on compute capability 9 and 10: both keep the output and one fp32 number a row.
_WITHOUT_CUDNN = {"TORCH_CUDNN_V8_API_DISABLED": "1", "TORCH_CUDNN_SDPA_DEPRIORITIZED": "1"}
_TOTAL_BYTES = "OOMDOCTOR_NULL_TOTAL_BYTES"
# The number is raised when Inductor makes other code of the same graph, as when its constants got their true values.
_COMPILER_CACHES = {"TORCHINDUCTOR_CACHE_DIR": "inductor-2", "TRITON_CACHE_DIR": "triton"}
# A graph that is found there skips what compiling allocates, which changes what the step finds in the allocator.
_NO_KEPT_GRAPHS = {"TORCHINDUCTOR_FX_GRAPH_CACHE": "0", "TORCHINDUCTOR_AUTOGRAD_CACHE": "0"}
# Variables that choose among real GPUs; the null GPU is device 0 and the only one.
_DROPPED = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")


def environment(card: Card, build: TorchBuild, base: Mapping[str, str]) -> dict[str, str]:
    """Build the null GPU if needed, and return the environment of a process that sees it as `card`.

    Child processes inherit it, so data loaders and launchers see the card too; each process has memory of its own.

    Args:
        card: The card of the null GPU.
        build: The torch that the process will import.
        base: Environment to start from; its `LD_PRELOAD` and `LD_LIBRARY_PATH` are kept.

    Raises:
        NoAnswerError: The null GPU cannot run here; the message says why and the hint what to do.
    """
    if sys.platform != "linux":
        raise NoAnswerError(
            f"the null GPU runs on Linux alone, and this is `{sys.platform}`",
            hint="use a Linux machine or container; it needs no GPU",
        )
    if build.cuda is None:
        raise NoAnswerError(
            f"the null GPU needs a CUDA build of torch, and `{build.version}` is none",
            hint="install a CUDA build, which needs no GPU to run here: `pip install torch` brings one on Linux",
        )
    if build.cuda_major not in SERVED_CUDA_MAJORS:
        served = " and ".join(str(major) for major in SERVED_CUDA_MAJORS)
        raise NoAnswerError(
            f"the null GPU serves CUDA {served}, and torch `{build.version}` was built for CUDA {build.cuda}",
            hint="install a torch that was built for one of these",
        )
    directory = build_library(build, base)
    _check_preloadable(directory)
    result = {name: value for name, value in base.items() if name not in _DROPPED}
    result["LD_PRELOAD"] = _prepend(str(directory / LIBRARY), base.get("LD_PRELOAD"))
    result["LD_LIBRARY_PATH"] = _prepend(str(directory), base.get("LD_LIBRARY_PATH"))
    # Triton links its launchers against the driver and would rather use a real one that the system knows.
    result["TRITON_LIBCUDA_PATH"] = str(directory)
    try:
        cudnn = cudnn_variables(build, base, card)
    except OSError as error:
        raise _unwritable(cache_directory(base), error) from error
    choices = {} if COMMAND in cudnn else _WITHOUT_CUDNN
    return result | choices | _card_variables(card) | cudnn | _compiler_caches(base)


def _compiler_caches(base: Mapping[str, str]) -> dict[str, str]:
    """Return variables that keep what is compiled on a null GPU apart from what the user's own training compiles.

    All kernels take the same time on a null GPU. A kernel's configuration that was chosen by time there would be taken
    by a training run on the real card, since Inductor knows it by the card's properties. Graphs and choices of earlier
    runs are not taken from there, only binaries of kernels: a first training run compiles, times its kernels and
    matrix multiplications, and what that allocates decides how the blocks of its steps lie.
    """
    caches = cache_directory(base) / "compiled-on-null-gpu"
    try:
        caches.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_writable = os.access(caches, os.W_OK)
        for choice in caches.glob("inductor-*/*/*.best_config"):
            choice.unlink(missing_ok=True)
    except OSError:
        is_writable = False
    if not is_writable:
        caches = Path(base.get("TMPDIR") or tempfile.gettempdir()) / f"oomdoctor-compiled-on-null-gpu-{os.getuid()}"
    return _NO_KEPT_GRAPHS | {name: str(caches / part) for name, part in _COMPILER_CACHES.items()}


def with_total_bytes(environment: Mapping[str, str], total_bytes: int) -> dict[str, str]:
    """Return the environment with another total memory of the card.

    Args:
        environment: An environment that `environment` returned.
        total_bytes: Memory of the card.
    """
    return {**environment, _TOTAL_BYTES: str(total_bytes)}


def _check_preloadable(directory: Path) -> None:
    if any(separator in str(directory) for separator in _SEPARATORS):
        raise NoAnswerError(
            f"the null GPU cannot be loaded from `{directory}`: the linker splits its path at spaces and colons",
            hint="set `XDG_CACHE_HOME` to a directory without spaces and colons in its path",
        )


def _prepend(first: str, rest: str | None) -> str:
    return f"{first}:{rest}" if rest else first


def _card_variables(card: Card) -> dict[str, str]:
    major, minor = card.compute_capability
    return {
        "OOMDOCTOR_NULL_NAME": card.name,
        _TOTAL_BYTES: str(card.total_bytes),
        "OOMDOCTOR_NULL_CONTEXT_BYTES": str(card.context_bytes),
        "OOMDOCTOR_NULL_RESERVE_BYTES": str(card.reserve_bytes),
        "OOMDOCTOR_NULL_COMPUTE_CAPABILITY": f"{major}.{minor}",
        "OOMDOCTOR_NULL_SM_COUNT": str(card.sm_count),
        "OOMDOCTOR_NULL_THREADS_PER_SM": str(card.max_threads_per_sm),
        "OOMDOCTOR_NULL_SHARED_MEMORY_PER_BLOCK_BYTES": str(card.shared_memory_per_block_bytes),
        "OOMDOCTOR_NULL_L2_BYTES": str(card.l2_bytes),
    }


_UNKNOWN_CALLS = "oomdoctor_null_unknown_calls"


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(None)
    for name in (
        "capacity",
        "used",
        "peak_used",
        "reads",
        "workspaces_given_up",
        "workspace_retries",
        "workspace_bytes",
        "has_makeshift_plans",
    ):
        getattr(library, f"oomdoctor_null_{name}").restype = ctypes.c_uint64
    library.oomdoctor_null_set_capacity.argtypes = [ctypes.c_uint64]
    library.oomdoctor_null_set_capacity.restype = None
    library.oomdoctor_null_note_files.argtypes = [ctypes.c_int]
    library.oomdoctor_null_note_files.restype = None
    unknown_calls = getattr(library, _UNKNOWN_CALLS)
    unknown_calls.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    unknown_calls.restype = ctypes.c_size_t
    return library


def is_null_gpu() -> bool:
    """Return whether this process runs on a null GPU. Where it does not, all but `reads` raise AttributeError."""
    return hasattr(ctypes.CDLL(None), _UNKNOWN_CALLS)


def capacity_bytes() -> int:
    """Return the bytes that PyTorch may take from the device."""
    return int(_library().oomdoctor_null_capacity())


def set_capacity_bytes(capacity: int) -> None:
    """Set the bytes that PyTorch may take; existing allocations stay, even where they exceed them.

    The device's total becomes the capacity plus the context's share. `torch.cuda.mem_get_info` follows at once;
    `torch.cuda.get_device_properties` answers with what it was when PyTorch first asked.
    """
    _library().oomdoctor_null_set_capacity(capacity)


def used_bytes() -> int:
    """Return the bytes allocated on the device by all libraries, in whole pages of 2 MiB."""
    return int(_library().oomdoctor_null_used())


def peak_used_bytes() -> int:
    """Return the most bytes that were allocated on the device at one time."""
    return int(_library().oomdoctor_null_peak_used())


def reads() -> int:
    """Return how often zeros were copied from a null GPU to the host; 0 where there is no null GPU."""
    return int(_library().oomdoctor_null_reads()) if is_null_gpu() else 0


def workspaces_given_up() -> int:
    """Return how often PyTorch found no room for a workspace and went on without; 0 where there is no null GPU.

    PyTorch's allocator counts each as an OOM, though the program sees none.
    """
    return int(_library().oomdoctor_null_workspaces_given_up()) if is_null_gpu() else 0


def workspace_retries() -> int:
    """Return how often the allocator gave back its cache for a workspace; 0 where there is no null GPU.

    PyTorch can do without such a workspace. Each that was given up is counted, too.
    """
    return int(_library().oomdoctor_null_workspace_retries()) if is_null_gpu() else 0


def workspace_bytes() -> int:
    """Return the bytes of the largest workspace of a convolution in this trial; 0 where there is no null GPU."""
    return int(_library().oomdoctor_null_workspace_bytes()) if is_null_gpu() else 0


def begin_trial() -> None:
    """Begin a trial, for which plans of cuDNN that PyTorch kept from earlier ones are old."""
    if is_null_gpu():
        _library().oomdoctor_null_begin_trial()


def has_makeshift_plans() -> bool:
    """Return whether the trial ran a plan of an earlier one, chosen where there was no room for a better one."""
    return is_null_gpu() and bool(_library().oomdoctor_null_has_makeshift_plans())


def note_files(descriptor: int) -> None:
    """Append from now on the path of each file that is opened to read, also by native code, each with a zero byte.

    Args:
        descriptor: File descriptor, open for appending, so that forks can share it.
    """
    _library().oomdoctor_null_note_files(descriptor)


def unknown_calls() -> tuple[str, ...]:
    """Return the names of functions that were called and are not served, in the order of their first call."""
    size = int(_library().oomdoctor_null_unknown_calls(None, 0)) + 1
    buffer = ctypes.create_string_buffer(size)
    _library().oomdoctor_null_unknown_calls(buffer, size)
    return tuple(buffer.value.decode().splitlines())
