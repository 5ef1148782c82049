"""Autograd's engine adds gradients up, in place where it is the only one to hold what it has."""

from __future__ import annotations

from typing import Final

import torch

from oomdoctor.tracing.pointwise import is_dense
from oomdoctor.tracing.private import in_backward, references

_ONLY_ENGINE: Final = (3, 2)
"""References to a gradient: the engine's, the call's and Python's; and to its storage: the tensor's and Python's."""


def accumulates(buffer: object, gradient: object) -> bool:
    """Whether autograd's engine would add a gradient to what it has in place, were there nobody but itself to hold it.

    From torch 2.10 on a storage that Python has seen counts Python among its owners, and the engine, which owns it
    then no longer alone, adds out of place. Source: `can_accumulate_inplace`, input_buffer.cpp.
    """
    if not (isinstance(gradient, torch.Tensor) and isinstance(buffer, torch.Tensor) and in_backward()):
        return False
    if torch.is_grad_enabled() or buffer.shape != gradient.shape or buffer.dtype != gradient.dtype:
        return False
    return references(buffer) == _ONLY_ENGINE and is_dense(buffer)
