"""Which operators of CUDA take memory besides their results; `models` say how much."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oomdoctor.tracing.models import (
    attention,
    blas,
    dropout_state,
    embedding,
    embedding_bags,
    group_norm,
    indexing,
    layer_norm,
    losses,
    normalization,
    norms,
    pooling,
    radix_sort,
    reducing,
    resampling,
    scans,
    searching,
    selection,
)
from oomdoctor.tracing.taking import NOTHING

if TYPE_CHECKING:
    from oomdoctor.tracing.taking import Call, Temporaries

_MODELS = {
    **blas.MODELS,
    **reducing.MODELS,
    **attention.MODELS,
    **embedding.MODELS,
    **embedding_bags.MODELS,
    **pooling.MODELS,
    **normalization.MODELS,
    **group_norm.MODELS,
    **norms.MODELS,
    **dropout_state.MODELS,
    **indexing.MODELS,
    **layer_norm.MODELS,
    **losses.MODELS,
    **radix_sort.MODELS,
    **resampling.MODELS,
    **scans.MODELS,
    **searching.MODELS,
    **selection.MODELS,
}


def temporaries_of(call: Call) -> Temporaries:
    """What a call takes."""
    model = _MODELS.get(_name(call.operator))
    return model(call) if model else NOTHING


def has_model(operator: Any) -> bool:  # noqa: ANN401 - an operator
    """Whether an operator may take something besides its results."""
    return _name(operator) in _MODELS


def _name(operator: Any) -> str:  # noqa: ANN401 - an operator
    return str(operator.name().partition(".")[0].removeprefix("aten::"))
