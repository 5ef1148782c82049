"""Print what the other programs here answer, as JSON; one process, because importing torch takes longer than most.

Usage: everything.py trace|null
"""

from __future__ import annotations

import json
import sys

import examples
import refused_calls
import steps
import storages

from oomdoctor.engines.catalogue import find_card


def traced() -> dict[str, object]:
    """Answers on the emulated device."""
    import device
    import known_values

    from oomdoctor.engines.trace.emulation import emulated_cuda

    found: dict[str, object] = {"device": device.answers(), "known_values": known_values.answers()}
    with emulated_cuda(find_card("rtx-4090")):
        return {**found, **compared(), "own storages": storages.own_answers()}


def compared() -> dict[str, object]:
    """Answers that are to be the same on both."""
    return {
        "steps": steps.answers(),
        "examples": examples.answers(),
        "refused": refused_calls.answers(),
        "storages": storages.answers(),
    }


if __name__ == "__main__":
    on_null_gpu = sys.argv[1] == "null"
    json.dump(compared() if on_null_gpu else traced(), sys.stdout)
