"""Run as a script in a child process: one line of JSON with GPUtil's reading of nvidia-smi.

GPUtil waits for nvidia-smi without a limit, and it raises whatever Python raises on an answer that it does not expect.
In a child, neither can harm the parent. It must run without the rest of the package.
"""

from __future__ import annotations

import json
import sys
import warnings

_FIELDS = ("id", "uuid", "name", "load", "memoryTotal", "memoryUsed", "memoryFree")


def main() -> None:
    """Write `{"gpus": [...]}`, with memory in MiB and NaN for what is unknown, or `{"error": "..."}`."""
    warnings.simplefilter("ignore")  # distutils is deprecated, and GPUtil imports it
    try:
        import GPUtil  # noqa: PLC0415 - its import is one of the things that fail

        answer: object = {"gpus": [{field: getattr(gpu, field) for field in _FIELDS} for gpu in GPUtil.getGPUs()]}
    except Exception as error:  # noqa: BLE001 - anything; the parent has words for it
        answer = {"error": f"{type(error).__name__}: {error}"}
    sys.stdout.write("\n" + json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
