"""What the installed PyTorch itself prints when the null GPU is full, against what it counted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from quoting import GIB, MIB, as_printed, read

from oomdoctor.diagnose.evidence import Message

PROGRAM = Path(__file__).parent / "programs" / "filling.py"


@pytest.fixture(scope="module")
def errors() -> dict[str, Any]:
    """Errors of one run on a null GPU of 12 GiB, by name."""
    import os

    from oomdoctor.engines.choice import choose_engine

    engine = choose_engine(engine="null", gpu=None, device=None, memory_bytes=12 * GIB, base=os.environ)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(PROGRAM)],
        env=engine.environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return {error["name"]: error for error in map(json.loads, done.stdout.splitlines())}


def holds(message: Message, error: dict[str, Any]) -> bool:
    """Whether the numbers are those that PyTorch counted, to the decimals that it prints."""
    facts = message.facts
    return (facts.gpu_index, facts.allocated_bytes, facts.reserved_unallocated_bytes, facts.free_bytes) == (
        0,
        as_printed(error["allocated"]),
        as_printed(error["reserved"] - error["allocated"]),
        as_printed(error["free"]),
    ) and facts.total_bytes == as_printed(error["total"])


@pytest.mark.null_gpu
def test_a_real_error_is_read_as_pytorch_counted(errors: dict[str, Any]) -> None:
    """The numbers of a real message are the allocator's own."""
    message = read(f"torch.OutOfMemoryError: {errors['huge']['text']}")
    assert message.kind == "cuda-allocator"
    assert message.facts.tried_bytes == 40 * GIB
    assert message.facts.reserved_unallocated_bytes == 17 * MIB
    assert message.facts.allowed_bytes is None
    assert holds(message, errors["huge"])


@pytest.mark.null_gpu
def test_a_real_cap_is_read(errors: dict[str, Any]) -> None:
    """What `set_per_process_memory_fraction` allows stands in the message."""
    message = read(errors["capped"]["text"])
    assert message.facts.allowed_bytes is not None
    assert abs(message.facts.allowed_bytes - errors["capped"]["total"] // 4) < 10 * MIB
    assert holds(message, errors["capped"])


@pytest.mark.null_gpu
def test_real_errors_with_one_number_or_none_are_read(errors: dict[str, Any]) -> None:
    """A size beyond counting is absent, and the host's allocator prints exact bytes."""
    beyond, host = read(errors["beyond counting"]["text"]), read(errors["host"]["text"])
    assert (beyond.kind, beyond.facts.tried_bytes) == ("cuda-allocator", None)
    assert (host.kind, host.device, host.facts.tried_bytes) == ("host-allocator", "cpu", 1 << 50)
