"""Attention: what its kernels keep and take.

Source: attention.cu and attention_backward.cu, `mha_fwd` and `mha_bwd`, flash_api.cpp, and `kernel_backward.h` of
mem_eff_attention, torch 2.6 to 2.15.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.tracing.taking import NOTHING, Temporaries

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomdoctor.tracing.taking import Call


MODELS: Final[dict[str, Callable[[Call], Temporaries]]] = {}
