"""Answers of probes, kept for as long as nothing that could change them changes.

What goes unseen is said in the README: programs that installed libraries start, the network, the clock and the state of
the machine.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oomdoctor.checking.cache import folder as files
from oomdoctor.checking.cache.question import is_repeatable, key_of
from oomdoctor.checking.cache.unchanged import Looker, digest_of, is_here
from oomdoctor.errors import OomdoctorError
from oomdoctor.probing.dependencies import Dependencies  # noqa: TC001 - reading goes by the annotations
from oomdoctor.probing.found import Probe
from oomdoctor.results import ProbeResult  # noqa: TC001 - the same
from oomdoctor.serialisation import decode, encode

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from oomdoctor.probing.request import ProbeRequest


@dataclass(frozen=True, slots=True)
class _Answer:
    """One file of the cache.

    Attributes:
        dependencies: What the target used.
        variables: Digest of the variables among it.
        versions: Version by name, of what answered.
        result: What it found.
    """

    dependencies: Dependencies
    variables: str
    versions: dict[str, str]
    result: ProbeResult


class Cache:
    """Answers in a folder, which several checks may use at once.

    Args:
        folder: Where they are; made with the first answer.
        environment: Variables by name, as the probes have them.
    """

    def __init__(self, folder: Path, *, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = environment
        self._looker = Looker()
        self._keys: dict[ProbeRequest, str | None] = {}

    def find(self, request: ProbeRequest) -> Probe | None:
        """The answer to a question that was asked before and whose answer would be the same now; else None."""
        key = self._keys[request] = self._key(request)
        for path in [] if key is None else files.answers(self._folder, key):
            answer = _read(path)
            if answer is not None and self._holds(answer):
                files.used(path)
                return Probe(answer.result, answer.versions, answer.dependencies)
        return None

    def keep(self, request: ProbeRequest, probe: Probe) -> str | None:
        """Keep an answer, unless it came from a real GPU or may depend on something that nobody saw.

        What has changed since the question was asked, or since the target used it, would give another answer.

        Returns:
            Why it is not kept, where something about the target is the reason; else None.
        """
        key = self._key(request)
        used = probe.dependencies
        answer = _Answer(used, digest_of(used.variables, self._environment), probe.versions, probe.result)
        if key is None or self._keys.get(request, key) != key or probe.result.device.kind != "null":
            return None
        if used.unseen:
            return used.unseen[0]
        if not self._holds(answer):
            return self._what_changed(used)
        state = json.dumps([encode(used), answer.variables], sort_keys=True)
        name = hashlib.sha256(state.encode()).hexdigest()[:16]
        files.write(self._folder, key, name, json.dumps(encode(answer), allow_nan=False) + "\n")
        return None

    def _what_changed(self, used: Dependencies) -> str:
        for key, state in used.seen.items():
            if not self._looker.sees({key: state}):
                return f"`{key.partition(' ')[2]}` changed while it was probed"
        return "the environment changed while it was probed"

    def _key(self, request: ProbeRequest) -> str | None:
        """The question's name; None for a question whose answer is not to be kept, or that has none."""
        try:
            return key_of(request, self._environment) if is_repeatable(request, self._environment) else None
        except (OomdoctorError, OSError):
            return None

    def _holds(self, answer: _Answer) -> bool:
        used = answer.dependencies
        return (
            not used.unseen
            and is_here(used)
            and digest_of(used.variables, self._environment) == answer.variables
            and self._looker.sees(used.seen)
        )


def _read(path: Path) -> _Answer | None:
    """The answer in a file; None for what is none, whoever wrote it."""
    try:
        return decode(_Answer, json.loads(files.read(path) or ""), "")
    except Exception:  # noqa: BLE001 - what is cut short or made up may go wrong in any way, and is no answer
        return None
