"""Local GPUs as nvidia-smi reports them, through GPUtil: the second source, for where NVML cannot be had."""

from __future__ import annotations

import ast
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from oomdoctor.devices.local_gpu import LocalGpu, SourceError
from oomdoctor.units import MIB

_TIMEOUT_SECONDS: Final = 20.0
_NOT_A_NUMBER: Final = re.compile(r"ValueError: invalid literal for int\(\) with base 10: (?P<answer>.+)", re.DOTALL)


def read_nvidia_smi(timeout_seconds: float = _TIMEOUT_SECONDS) -> tuple[LocalGpu, ...]:
    """Every GPU that nvidia-smi lists, without its processes.

    Raises:
        SourceError: There is no nvidia-smi, GPUtil cannot be imported, the answer is not a list of GPUs, or none
            came in time.
    """
    if shutil.which("nvidia-smi") is None:
        raise SourceError("`nvidia-smi` is not on the PATH")
    answer = _parse(_run_child(timeout_seconds))
    if "error" in answer:
        raise SourceError(_explain(answer["error"]))
    return tuple(_read_row(row) for row in answer["gpus"])


def _run_child(timeout_seconds: float) -> str:
    # -P: the child must not find modules beside the script, or in the current directory.
    command = [sys.executable, "-P", str(Path(__file__).with_name("gputil_child.py"))]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, start_new_session=True
    ) as child:
        try:
            output, _ = child.communicate(timeout=timeout_seconds)
        except BaseException as error:
            _kill_session(child)  # nvidia-smi too, which is the one that hangs
            if isinstance(error, subprocess.TimeoutExpired):
                raise SourceError(f"`nvidia-smi` did not answer within {timeout_seconds:g} seconds") from error
            raise
    return output.decode("utf-8", "replace")


def _kill_session(child: subprocess.Popen[bytes]) -> None:
    if hasattr(os, "killpg"):
        os.killpg(child.pid, signal.SIGKILL)
    else:
        child.kill()


def _parse(output: str) -> dict[str, Any]:
    """The last line of the child's output; anything before it is GPUtil's or nvidia-smi's own."""
    lines = output.strip().splitlines()
    try:
        answer = json.loads(lines[-1])
    except (IndexError, ValueError) as error:
        raise SourceError("GPUtil ended without an answer") from error
    if not isinstance(answer, dict):
        raise SourceError("GPUtil ended without an answer")
    return answer


def _explain(error: str) -> str:
    """Turn the exception that GPUtil died of into what nvidia-smi said."""
    if match := _NOT_A_NUMBER.fullmatch(error):
        return f"`nvidia-smi` answers: {_unquoted(match['answer'])}"
    if error.startswith(("ModuleNotFoundError", "ImportError")):
        return f"GPUtil, which reads `nvidia-smi`, cannot be imported: {error.partition(': ')[2]}"
    if error.startswith("ZeroDivisionError"):
        return "`nvidia-smi` reports a GPU with no memory at all"
    return f"GPUtil cannot read what `nvidia-smi` answers ({error})"


def _unquoted(text: str) -> str:
    try:
        return str(ast.literal_eval(text)).strip()
    except (ValueError, SyntaxError):
        return text


def _read_row(row: dict[str, Any]) -> LocalGpu:
    utilisation = _known(row["load"])
    return LocalGpu(
        index=row["id"],
        uuid=row["uuid"],
        name=row["name"],
        total_bytes=_mebibytes(row["memoryTotal"]),
        used_bytes=_mebibytes(row["memoryUsed"]),
        free_bytes=_mebibytes(row["memoryFree"]),
        reserved_bytes=None,
        utilisation_percent=None if utilisation is None else round(utilisation * 100),
        processes=None,
        source="nvidia-smi",
    )


def _mebibytes(value: float) -> int | None:
    known = _known(value)
    return None if known is None else round(known * MIB)


def _known(value: float) -> float | None:
    """GPUtil has NaN for whatever is not a number, such as `[N/A]`."""
    return value if math.isfinite(value) else None
