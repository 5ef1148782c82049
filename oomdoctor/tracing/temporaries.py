"""Which operators of CUDA take memory besides their results; `models` say how much."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oomdoctor.tracing.models.attention import MODELS as ATTENTION_MODELS
from oomdoctor.tracing.models.blas import MODELS as BLAS_MODELS
from oomdoctor.tracing.models.dropout_state import MODELS as DROPOUT_STATE_MODELS
from oomdoctor.tracing.models.embedding import MODELS as EMBEDDING_MODELS
from oomdoctor.tracing.models.embedding_bags import MODELS as EMBEDDING_BAGS_MODELS
from oomdoctor.tracing.models.group_norm import MODELS as GROUP_NORM_MODELS
from oomdoctor.tracing.models.indexing import MODELS as INDEXING_MODELS
from oomdoctor.tracing.models.layer_norm import MODELS as LAYER_NORM_MODELS
from oomdoctor.tracing.models.losses import MODELS as LOSSES_MODELS
from oomdoctor.tracing.models.normalization import MODELS as NORMALIZATION_MODELS
from oomdoctor.tracing.models.norms import MODELS as NORMS_MODELS
from oomdoctor.tracing.models.pooling import MODELS as POOLING_MODELS
from oomdoctor.tracing.models.radix_sort import MODELS as RADIX_SORT_MODELS
from oomdoctor.tracing.models.reducing import MODELS as REDUCING_MODELS
from oomdoctor.tracing.models.resampling import MODELS as RESAMPLING_MODELS
from oomdoctor.tracing.models.scans import MODELS as SCANS_MODELS
from oomdoctor.tracing.models.searching import MODELS as SEARCHING_MODELS
from oomdoctor.tracing.models.selection import MODELS as SELECTION_MODELS
from oomdoctor.tracing.taking import NOTHING

if TYPE_CHECKING:
    from oomdoctor.tracing.taking import Call, Temporaries

_MODELS = {
    **BLAS_MODELS,
    **REDUCING_MODELS,
    **ATTENTION_MODELS,
    **EMBEDDING_MODELS,
    **EMBEDDING_BAGS_MODELS,
    **POOLING_MODELS,
    **NORMALIZATION_MODELS,
    **GROUP_NORM_MODELS,
    **NORMS_MODELS,
    **DROPOUT_STATE_MODELS,
    **INDEXING_MODELS,
    **LAYER_NORM_MODELS,
    **LOSSES_MODELS,
    **RADIX_SORT_MODELS,
    **RESAMPLING_MODELS,
    **SCANS_MODELS,
    **SEARCHING_MODELS,
    **SELECTION_MODELS,
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
