"""Agent of a trial: it tells the parent what happens in a process of the command, as it happens.

What only matters with torch is in `training_agent`, which is imported after torch.

Nobody answers; when the parent knows enough it kills the command. A process that has done all steps, or ends because
memory ran out, stands still until then: the trial is over, and what the program has registered with `atexit` shall not
write into it.
"""

# ruff: noqa: PLC0415 - modules are imported when needed

from __future__ import annotations

import atexit
import os
import sys

from . import imports, settings
from .channel import Channel
from .file_writes import FileWrites
from .guard import guarded

TYPE_CHECKING = False  # type checkers know the name; `typing` takes longer to import than all of this
if TYPE_CHECKING:
    from .training_agent import TrainingAgent

_OTHER_FRAMEWORKS = ("tensorflow", "jax", "keras", "paddle", "mxnet")


class TrialAgent:
    """Watches one process from its start; what only matters with torch is made once torch is imported."""

    def __init__(self) -> None:
        channel = self._channel = Channel(settings.SOCKET)
        self._writes = FileWrites(lambda path: channel.send_event("wrote", {"path": path}, even_if_quiet=True))
        self._training: TrainingAgent | None = None
        self._process = os.getpid()

    def begin(self) -> None:
        """Watch from now on."""
        os.register_at_fork(after_in_child=guarded(self._channel.after_fork))
        guarded(self._writes.watch)()
        atexit.register(guarded(self._at_exit))
        imports.when_imported("multiprocessing.process", self._watch_children)
        imports.when_imported("torch", self._watch_torch)
        imports.when_imported("safetensors", self._writes.watch_safetensors)
        if settings.LITERALS:
            guarded(self._set_literals)()
        if os.environ.get("OOMDOCTOR_TRIAL_USES"):
            from .dependency_recorder import record_command_process

            guarded(record_command_process)()

    def _set_literals(self) -> None:
        from . import literals

        literals.begin(lambda path: self._channel.send_event("literals", {"path": path}, even_if_quiet=True))

    def _at_exit(self) -> None:
        if "torch" not in sys.modules and os.getpid() == self._process:
            frameworks = [name for name in _OTHER_FRAMEWORKS if name in sys.modules]
            self._channel.send_event("no_torch", {"frameworks": frameworks})

    def _watch_children(self) -> None:
        from .exception_hooks import watch_children

        def ended(error: BaseException | None) -> None:
            if self._training is not None and not self._channel.is_quiet:
                self._training.end(error)

        watch_children(sys.modules["multiprocessing.process"], guarded(ended))

    def _watch_torch(self) -> None:
        from .training_agent import TrainingAgent

        torch = sys.modules["torch"]
        if settings.ACCUMULATION:
            from .accumulation_agent import AccumulationAgent

            guarded(AccumulationAgent(torch, self._channel.send).begin)()
        if settings.REMEDIES:
            from .remedies import RemedyAgent

            RemedyAgent(torch, self._channel).begin()
        self._training = TrainingAgent(torch, self._channel)
        self._training.begin()
        self._writes.watch_torch(torch)
