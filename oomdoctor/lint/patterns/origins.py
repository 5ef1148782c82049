"""What a model was before it was wrapped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oomdoctor.lint.flow.events import Act

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oomdoctor.lint.flow.events import Run
    from oomdoctor.lint.flow.values import Value


def origins(run: Run, model: Value) -> Iterator[Value]:
    """The model as it is used, and as the run has seen it being made: DistributedDataParallel hides the library."""
    yield model
    for event in run.of(Act.CALL):
        if event.result.identity == model.identity and event.result.library != model.library:
            yield event.result
