"""Compile the null GPU once for each torch build, into the user's cache directory.

A build is made in a directory beside the final one and renamed, so a directory of the final name is complete. The key
of a build covers all its inputs, so a finished one is found by a few `stat` calls.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shlex
import shutil
import subprocess  # the compiler
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from oomdoctor.engines.null_gpu.stubs import CudaLibraries, read_cuda_libraries, stub_source
from oomdoctor.errors import NoAnswerError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from oomdoctor.engines.torch_build import TorchBuild


LIBRARY = "libcuda.so.1"
# By path: `importlib.resources` takes longer to import than the sources to read.
_SOURCE = Path(__file__).with_name("source")
SERVED_CUDA_MAJORS = (12, 13)
_COMPILERS = ("cc", "gcc", "clang")
_FLAGS = ("-std=gnu11", "-O1", "-w", "-fPIC", "-fvisibility=hidden", "-pthread")
# Thousands of functions of one line each: optimising them would take most of the time and gain nothing.
_STUB_FLAGS = ("-O0", "-fno-asynchronous-unwind-tables")
_DETAIL_LINES = 15
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
    compiler = _find_compiler(base)
    root = _cache_directory(base)
    destination = root / _key(build, compiler)
    if destination.is_dir():
        return destination
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _lock(root / f"{destination.name}.lock"):
            if not destination.is_dir():
                _build_beside(destination, build, compiler)
    except OSError as error:
        raise NoAnswerError(
            f"the null GPU cannot be built in `{root}`: {error}",
            hint="set `XDG_CACHE_HOME` to a directory that you may write to",
        ) from error
    return destination


def _cache_directory(base: Mapping[str, str]) -> Path:
    configured = base.get("XDG_CACHE_HOME", "")
    # The specification says to ignore a relative path.
    cache = Path(configured) if configured.startswith("/") else Path(base.get("HOME") or Path.home()) / ".cache"
    return cache / "oomdoctor" / "null-gpu"


def _find_compiler(base: Mapping[str, str]) -> list[str]:
    path = base.get("PATH")
    candidates = [shlex.split(base["CC"])] if base.get("CC") else [[name] for name in _COMPILERS]
    for command in candidates:
        program = shutil.which(command[0], path=path)
        if program is not None:
            return [program, *command[1:]]
    wanted = f"`{base['CC']}` from `CC`" if base.get("CC") else ", ".join(f"`{name}`" for name in _COMPILERS)
    raise NoAnswerError(
        f"the null GPU needs a C compiler, and {wanted} cannot be found",
        hint="install gcc, e.g. `apt install gcc`, or set `CC`",
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
    for path in (*_SOURCE.iterdir(), *(_SOURCE.with_name(name) for name in ("build.py", "elf.py", "stubs.py"))):
        yield path.name, path.read_bytes()


def _versions(build: TorchBuild) -> dict[str, int]:
    """Return the version numbers that the libraries report."""
    major, minor = (int(part) for part in f"{build.cuda}.0".split(".")[:2])
    cuda = 1000 * major + 10 * minor
    cudnn = _wheel_version(build, "cudnn")
    cublas = _wheel_version(build, "cublas")
    nccl = _wheel_version(build, "nccl")
    return {
        "NULL_CUDA_VERSION": cuda,
        "NULL_CUDNN_VERSION": cudnn[0] * 10000 + cudnn[1] * 100 + cudnn[2] if cudnn else _DEFAULT_CUDNN,
        "NULL_CUBLAS_VERSION": cublas[0] * 10000 + cublas[1] * 100 + cublas[2] if cublas else 10 * cuda,
        "NULL_NCCL_VERSION": nccl[0] * 10000 + nccl[1] * 100 + nccl[2] if nccl else _DEFAULT_NCCL,
    }


def _wheel_version(build: TorchBuild, library: str) -> tuple[int, int, int] | None:
    pattern = re.compile(rf"nvidia_{library}(?:_cu\d+)?-(\d+)\.(\d+)\.(\d+)")
    for path in sorted(build.root.parent.glob(f"nvidia_{library}*.dist-info")):
        found = pattern.match(path.name)
        if found is not None:
            return int(found[1]), int(found[2]), int(found[3])
    return None


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold a lock file, so that one process builds; the lock ends with its process."""
    with path.open("w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build_beside(destination: Path, build: TorchBuild, compiler: list[str]) -> None:
    for abandoned in destination.parent.glob(f"{destination.name}.part-*"):
        shutil.rmtree(abandoned, ignore_errors=True)
    part = Path(tempfile.mkdtemp(prefix=f"{destination.name}.part-", dir=destination.parent))
    try:
        _build_into(part, build, compiler)
        part.rename(destination)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _build_into(directory: Path, build: TorchBuild, compiler: list[str]) -> None:
    libraries = read_cuda_libraries(build)
    work = directory / "work"
    names = work / "names"
    names.mkdir(parents=True)
    (work / "stubs.c").write_text(stub_source(libraries.functions), encoding="utf-8")
    macros = [f"-D{name}={value}" for name, value in _versions(build).items()]
    sources = [*sorted(_SOURCE.glob("*.c")), work / "stubs.c"]
    objects = _compile_all(compiler, [*_FLAGS, *macros, f"-I{_SOURCE}"], sources, work)
    _link(compiler, directory / LIBRARY, objects, libraries, names)
    for soname in libraries.sonames:
        if soname != LIBRARY:
            (directory / soname).symlink_to(LIBRARY)
    shutil.rmtree(work)


def _compile_all(compiler: list[str], flags: list[str], sources: list[Path], work: Path) -> list[Path]:
    """Compile the sources side by side; most of a compiler's time goes into starting it."""
    objects = [work / f"{source.stem}.o" for source in sources]
    commands = [
        [*compiler, *flags, *(_STUB_FLAGS if source.parent == work else ()), "-c", str(source), "-o", str(target)]
        for source, target in zip(sources, objects, strict=True)
    ]
    running = [_start(command) for command in commands]
    failed = [_finish(process) for process in running]
    for command, output in zip(commands, failed, strict=True):
        if output is not None:
            raise _compiler_error(command, output)
    return objects


def _link(compiler: list[str], library: Path, objects: list[Path], libraries: CudaLibraries, names: Path) -> None:
    """Link one library that answers to every soname.

    It is listed as needing every other name, and each of these is a link to itself. So the loader, which knows
    libraries by inode, gives the one library all the names and never opens the real ones, which would double what an
    import of torch takes of the host's memory.
    """
    others = [soname for soname in libraries.sonames if soname != LIBRARY]
    empty = names / "empty.so"
    _run([*compiler, "-shared", "-nostdlib", "-x", "c", os.devnull, "-o", str(empty)])
    for soname in others:
        shutil.copyfile(empty, names / soname)
    _run(
        [
            *compiler, *_FLAGS, "-shared", "-o", str(library), *map(str, objects),
            f"-Wl,-soname,{LIBRARY}", "-Wl,-Bsymbolic", "-Wl,-rpath,$ORIGIN", "-Wl,--enable-new-dtags",
            "-ldl", "-lpthread", f"-L{names}", "-Wl,--no-as-needed", *(f"-l:{soname}" for soname in others),
        ]
    )  # fmt: skip


def _start(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "LC_ALL": "C"},
    )


def _finish(process: subprocess.Popen[str]) -> str | None:
    """Wait, and return the output if the process failed."""
    output, _ = process.communicate()
    return output if process.returncode else None


def _run(command: list[str]) -> None:
    output = _finish(_start(command))
    if output is not None:
        raise _compiler_error(command, output)


def _compiler_error(command: list[str], output: str) -> NoAnswerError:
    last = "\n".join(output.strip().splitlines()[-_DETAIL_LINES:])
    return NoAnswerError(
        f"`{command[0]}` could not compile the null GPU",
        hint="set `CC` to another C compiler, such as gcc",
        details=f"{shlex.join(command)}\n{last}",
    )
