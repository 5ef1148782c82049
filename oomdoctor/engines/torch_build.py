"""The installed torch and the NVIDIA wheels beside it, found without importing them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

_ASSIGNMENT = re.compile(
    r"^(?P<name>__version__|cuda)\s*(?::[^=]+)?=\s*(?P<value>None|'[^']*'|\"[^\"]*\")", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """An installed torch.

    Attributes:
        version: As `torch.__version__`, for example `2.15.0+cu132`.
        cuda: CUDA version it was built for, for example `13.2`; None for a CPU or ROCm build.
        root: The package's directory.
    """

    version: str
    cuda: str | None
    root: Path

    @property
    def library_directory(self) -> Path:
        """Directory of `libtorch_cuda.so`."""
        return self.root / "lib"

    @property
    def cuda_major(self) -> int | None:
        """Major version of CUDA, 12 or 13 in the builds that are served; None without CUDA."""
        return None if self.cuda is None else int(self.cuda.split(".")[0])


@cache
def find_torch() -> TorchBuild | None:
    """Return the torch that this interpreter would import; None where there is none."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    root = Path(spec.origin).parent
    return parse_version_file((root / "version.py").read_text(encoding="utf-8"), root)


def parse_version_file(text: str, root: Path) -> TorchBuild:
    """Parse torch's generated `version.py`, given as text."""
    found = {match["name"]: match["value"] for match in _ASSIGNMENT.finditer(text)}
    cuda = found.get("cuda", "None")
    return TorchBuild(
        version=found.get("__version__", "'unknown'").strip("'\""),
        cuda=None if cuda == "None" else cuda.strip("'\""),
        root=root,
    )


def wheel_version(build: TorchBuild, library: str) -> tuple[int, int, int] | None:
    """Return the version of NVIDIA's wheel of a library, such as `cudnn`; None where it was not installed from one."""
    pattern = re.compile(rf"nvidia_{library}(?:_cu\d+)?-(\d+)\.(\d+)\.(\d+)")
    for path in sorted(build.root.parent.glob(f"nvidia_{library}*.dist-info")):
        found = pattern.match(path.name)
        if found is not None:
            return int(found[1]), int(found[2]), int(found[3])
    return None
