"""Whose code a source file is: the user's own, or a library's."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oomdoctor.results import SourceLine

_LONGEST_PATH = 4096

_TYPED_BY_HAND = re.compile(
    r"^(?:<stdin>|<console>|<ipython-input[^<>]*>|<cell line[^<>]*>|(?:Cell In|Input In|In) ?\[\d+\]"
    r"|.*/(?:ipykernel_\d+|ipython-input)[-/].*)$"
)
"""Code of a notebook or a prompt."""

_CHECKED_OUT = (
    "accelerate|apex|bitsandbytes|deepspeed|diffusers|lightning|lightning_fabric|peft|pytorch_lightning|transformers|trl"
    "|vllm"
)
"""Libraries that people also install from a checkout."""

_LIBRARY_PLACES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"(?:^|/)(?:site|dist)-packages/",
        r"(?:^|/)lib(?:32|64)?/python\d?(?:\.\d+)*t?/",  # the standard library on Linux and macOS
        r"(?:^|/)(?:python[\w.-]*|\w*conda\w*|\w*conda\w*/envs/[^/]+)/lib/",  # and on Windows
        r"(?:^|/)python\d+\.zip/|\.egg/",
        r"(?:^|/)(?:bin|scripts)/(?:[^/.]+|[^/]+\.exe/__main__\.py)$",  # what an installed command starts with
        r"/huggingface/modules/|/\.cache/torch/|/torch/hub/",  # models' own code, downloaded
        r"(?:^|/)torchinductor_[^/]+/|/torch_compile_debug/",  # written by the compiler
        r"(?:^|/)(?:debugpy|_?pydevd?_?\w*)/|(?:^|/)pydevd\.py$",  # started by an editor
        r"(?:^|/)torch/(?:nn|optim|autograd|utils|cuda|amp|distributed|multiprocessing|fx|jit|func|backends|csrc|_\w+)/",
        r"(?:^|/)torch/(?:_?tensor|serialization|functional|storage|hub|overrides|_\w+)\.py$",
        rf"(?:^|/)(?:{_CHECKED_OUT})/src/\w+/",  # a checkout that is installed in place
        rf"(?:^|/)({_CHECKED_OUT})/\1/",
        rf"(?:^|/)src/(?:{_CHECKED_OUT})/(?!examples/|scripts/|tests/|docs/|src/)(?:\w+/)+\w+\.py$",
        r"(?:^|/)(?:accelerate|transformers)/(?:utils|models|generation|commands)/",
        r"(?:^|/)accelerate/(?:accelerator|big_modeling|data_loader|hooks|launchers|optimizer|state)\.py$",
        r"(?:^|/)transformers/(?:trainer\w*|modeling_\w+|configuration_utils|optimization)\.py$",
        r"(?:^|/)(?:lightning/pytorch|lightning/fabric|lightning_fabric|pytorch_lightning)/",
        r"(?:^|/)deepspeed/(?:runtime|ops|utils|comm|inference|launcher|accelerator|module_inject)/",
        r"(?:^|/)deepspeed/__init__\.py$",
    )
)

_NATIVE = re.compile(r"\.(?:c|cc|cpp|cxx|cu|cuh|h|hpp|so|dll|pyd|pyx)(?:\.\d+)*(?::\d+)?$", re.IGNORECASE)


def is_library(path: str) -> bool:
    """Whether a file is a library's, the standard library's, generated or not Python: not code that a user wrote.

    Args:
        path: As a traceback or a memory snapshot prints it, of any operating system.
    """
    plain = path.strip()[:_LONGEST_PATH].replace("\\", "/")
    if _TYPED_BY_HAND.match(plain):
        return False
    if not plain or plain.startswith(("<", "??", "[")) or _NATIVE.search(plain):
        return True
    return any(place.search(plain) for place in _LIBRARY_PLACES)


def user_line(frames: Sequence[SourceLine]) -> SourceLine | None:
    """The innermost frame that is the user's own code; None where all are libraries'."""
    return next((frame for frame in reversed(frames) if not is_library(frame.path)), None)
