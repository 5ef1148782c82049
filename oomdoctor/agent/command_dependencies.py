"""Dependencies of a command: record what its process reads, for `oomdoctor check`.

The recording is oomdoctor's own, and so only a Python that runs oomdoctor itself can do it. Any other says so, and then
the answer is not kept.
"""

# ruff: noqa: PLC0415 - what is not needed yet is not imported yet
# ruff: noqa: PTH100, PTH120 - pathlib takes longer to import than the hook

from __future__ import annotations

import os
import sys

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def record_dependencies() -> None:
    """Record from now on; where that cannot be done, write down why not."""
    import json

    account = os.open(os.environ["OOMDOCTOR_TRIAL_USES"], os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
    try:
        reason = _record(account, json.loads(os.pread(account, 1 << 16, 0).split(b"\n", 1)[0]))
    except Exception as error:  # noqa: BLE001 - whatever it is, nothing is recorded then
        reason = f"`{type(error).__name__}` when the recording of what the command reads began"
    if reason:
        os.write(account, json.dumps({"escaped": reason}).encode() + b"\n")
    os.close(account)


def _record(account: int, wanted: dict[str, str]) -> str:
    """Begin, or say why not."""
    if (sys.prefix, sys.version) != (wanted["prefix"], wanted["version"]):
        return f"`{sys.executable}` took part, which is another Python than oomdoctor's"
    import importlib
    import importlib.util

    spec = importlib.util.find_spec("oomdoctor")
    if spec is None or os.path.dirname(os.path.abspath(spec.origin or "")) != _PACKAGE:
        return f"`{sys.executable}` took part, and finds another oomdoctor or none"
    # By its name, since the hook itself is for Pythons that have no oomdoctor.
    importlib.import_module("oomdoctor.command.dependencies").begin(account)
    return ""
