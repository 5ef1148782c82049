"""What a learning rate schedule counts, by how its length is written."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from oomdoctor.lint.patterns.writes import definitions, spelled_out, writes

if TYPE_CHECKING:
    from oomdoctor.lint.flow.events import Event


def counts_micro_batches(event: Event, period: str) -> bool:
    """Whether a schedule's length is made of the loader's, and the accumulation steps are not in it.

    Args:
        event: The schedule's step.
        period: Text of the accumulation steps.
    """
    node = event.value.node
    if not isinstance(node, ast.Call):
        return False
    tree = event.module.tree if event.function is None else event.function.node
    text = spelled_out(node, definitions(writes([tree])))
    return "len(" in text and period.rpartition(".")[2] not in text
