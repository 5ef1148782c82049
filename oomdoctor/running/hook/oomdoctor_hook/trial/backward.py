"""Where a backward begins and ends: `loss.backward()`, `torch.autograd.grad`, and those inside them.

Torch asks for its engine in one place, as `Variable._execution_engine.run_backward(...)`, and lets go of what it got
once the call is over. So what it gets is an engine whose end is the end of backward, and no frame of ours is ever
beneath backward: an error's traceback is as without us.
"""

# ruff: noqa: TID252 - where this folder lies is another program's business; the package has no other name
# ruff: noqa: ANN401 - torch and what programs hand over have no type here

from __future__ import annotations

from typing import Any

from ..guard import guarded
from .phases import PHASES


def watch(torch: Any) -> None:
    """Tell the phases of each backward."""
    variable = torch.autograd.Variable
    begins, ended = guarded(PHASES.backward_begins), guarded(PHASES.backward_ended)

    class Engine(type(variable._execution_engine)):  # type: ignore[misc]  # noqa: SLF001
        __slots__ = ()

        def __del__(self) -> None:
            ended()

    class Asked:
        def __get__(self, _instance: Any, _owner: Any) -> Any:
            begins()
            return Engine()

    variable._execution_engine = Asked()  # noqa: SLF001
