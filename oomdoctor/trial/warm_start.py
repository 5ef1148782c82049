"""The warm start of a search on a real GPU: the trace engine's answer, computed while the GPU's own worker loads.

It has a worker of its own, which emulates a card that looks as the GPU does and uses no GPU itself. Whatever goes wrong
in it costs the probe nothing but its guess.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Self

from oomdoctor.engines.catalogue import emulated_environment, generic_card
from oomdoctor.errors import OomdoctorError
from oomdoctor.multi_card.fit import UNLIMITED_BYTES, load_for_cards
from oomdoctor.results import Guidance
from oomdoctor.search.prediction import Guess
from oomdoctor.trial.protocol import FitCard
from oomdoctor.trial.worker_answers import CardFitted, LoadedTarget, SettingsChangedError
from oomdoctor.trial.worker_process import WorkerProcess

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oomdoctor.engines.catalogue import Card
    from oomdoctor.request import ProbeRequest
    from oomdoctor.target.reference import Reference
    from oomdoctor.trial.process import CancelToken
    from oomdoctor.trial.protocol import LoadForCards


_LEAST_SECONDS: Final = 10.0
"""A guess is waited for as long again as all has taken until then, but never less than this."""


class TracedWarmStart:
    """Worker that predicts the answer by a trace; use it as a context manager.

    It imports torch from the beginning on, traces once it is told the card, and is told the capacity in the end.

    Args:
        request: The probe's question.
        reference: The target, parsed.
        environment: Of the worker that uses the GPU; this one.s is the same, but that it is shown no GPU.
        stop: Ends a wait from another thread.
    """

    def __init__(
        self,
        request: ProbeRequest,
        reference: Reference,
        environment: Mapping[str, str],
        stop: CancelToken | None = None,
    ) -> None:
        self._request = request
        self._reference = reference
        self._started = time.monotonic()
        self._environment = emulated_environment(generic_card(UNLIMITED_BYTES), environment)
        self._stop = stop
        self._worker = WorkerProcess(self._environment, stop)
        self._keeps_settings = False
        self._card: Card | None = None
        self._pending: list[int | None] = []
        self._guesses_by_capacity: dict[int, Guess] = {}
        self._guesses: list[int] = []
        self._problem: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def begin(self, card: Card) -> None:
        """Have it load the target on a card that looks like this one, and trace it; returns at once.

        What the card has free now is mostly what it has in the end, so that no more need be asked then.
        """
        cap_bytes = self._request.memory_bytes
        if self._request.card_bytes is not None:
            cap_bytes = max(0, self._request.card_bytes - card.context_bytes)
        if cap_bytes is not None and cap_bytes < card.capacity_bytes:
            card = replace(card, context_bytes=card.total_bytes - cap_bytes)
        card = replace(card, reserve_bytes=min(self._request.reserve_bytes, max(0, card.capacity_bytes - 1)))
        self._card = card
        question = load_for_cards(self._request, self._reference, (card,), is_expendable=True)
        load = replace(question.load, keeps_settings=self._keeps_settings)
        self._ask(None, replace(question, load=load))
        self._ask_about(card.capacity_bytes)

    def guess(self, capacity_bytes: int) -> Guess | None:
        """Return the predicted answer with so much memory; None where there is none, or not in time.

        Raises:
            KeyboardInterrupt: The stop was set.
        """
        if capacity_bytes not in self._guesses_by_capacity and capacity_bytes not in self._pending:
            self._ask_about(capacity_bytes)
        so_far = time.monotonic() - self._started
        deadline = time.monotonic() + min(max(_LEAST_SECONDS, so_far), self._request.trial_timeout_seconds)
        while self._pending and self._problem is None:
            self._receive(deadline - time.monotonic())
        found = self._guesses_by_capacity.get(capacity_bytes)
        if found is not None and found.maximum not in self._guesses[-1:]:
            self._guesses.append(found.maximum)
        return found

    def guidance(self) -> Guidance:
        """Return the predictions, for the result."""
        return Guidance(tuple(self._guesses), None if self._guesses else self._problem)

    def close(self) -> None:
        """End the worker; what it said is kept."""
        self._worker.close()
        self._problem = self._problem or "it was ended"

    def _ask_about(self, capacity_bytes: int) -> None:
        key = self._card.key if self._card else ""
        self._ask(capacity_bytes, FitCard(key, self._request.headroom, capacity_bytes))

    def _ask(self, about: int | None, question: LoadForCards | FitCard) -> None:
        if self._problem is not None:
            return
        try:
            self._worker.begin(question, what="asking for a prediction")
        except OomdoctorError as error:
            self._fail(error.message)
        else:
            self._pending.append(about)

    def _receive(self, seconds: float) -> None:
        """Take the next answer; what is wrong with it is a note in the result, as the probe goes on without it."""
        try:
            kind = LoadedTarget if self._pending[0] is None else CardFitted
            answer = self._worker.answer(kind, what="tracing the step", timeout_seconds=round(max(0.0, seconds), 1))
        except SettingsChangedError as changed:
            self._begin_anew(changed)
        except OomdoctorError as error:
            self._fail(error.message)
        except RuntimeError as error:  # a bug of ours, as text
            self._fail(str(error).strip().splitlines()[-1])
        else:
            about = self._pending.pop(0)
            if about is not None and isinstance(answer, CardFitted):
                self._guesses_by_capacity[about] = Guess(answer.fit.maximum, answer.fit.recommended)

    def _begin_anew(self, changed: SettingsChangedError) -> None:
        """Ask the same of another worker, which has the allocator's variables that the target's file sets."""
        asked, self._pending = self._pending, []
        self._worker.close()
        self._worker = WorkerProcess(changed.environment(self._environment), self._stop)
        self._keeps_settings = True
        if self._card is not None:
            self.begin(self._card)
        for about in asked:
            if about is not None and about not in self._pending:
                self._ask_about(about)

    def _fail(self, problem: str) -> None:
        self._problem = problem
        self._worker.close()
