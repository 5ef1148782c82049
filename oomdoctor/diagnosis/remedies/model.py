"""Remedies for the model and its optimizer: what is there whatever the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.diagnosis.causes.activity import makes_state
from oomdoctor.diagnosis.causes.phrases import as_comment
from oomdoctor.diagnosis.remedies.step import room_for_others
from oomdoctor.results import Category, CauseId, Remedy, TrainingPhase

if TYPE_CHECKING:
    from oomdoctor.diagnosis.situation import Situation


def lighter_weights(situation: Situation) -> Remedy:
    """Hold the weights in fewer bits."""
    weights = situation.category_bytes(Category.WEIGHTS)
    return Remedy(
        id="lighter_weights",
        change="Load the weights in bfloat16, or quantised to 8 or 4 bits",
        how="model = Model.from_pretrained(name, dtype=torch.bfloat16)  # or: model.to(torch.bfloat16)",
        frees_bytes=weights // 2 if weights else None,
        cost="less precise weights; to train quantised ones needs an adapter such as LoRA",
    )


def spread_model(_situation: Situation) -> Remedy:
    """Hold parts elsewhere."""
    return Remedy(
        id="spread_model",
        change="Spread the model over several devices, or keep parts of it on the host",
        how='model = Model.from_pretrained(name, device_map="auto")  # to train: FSDP or ZeRO stage 3',
        frees_bytes=None,
        cost="transfers in every step; several devices, or slow host memory",
    )


def smaller_model(_situation: Situation) -> Remedy:
    """Take less of it."""
    return Remedy(
        id="smaller_model",
        change="Take a smaller variant, or a card that is large enough",
        how="oomdoctor probe model.py --target-batch 1 --gpu a100-sxm4-80gb  # does it fit there?",
        frees_bytes=None,
        cost="another model or other hardware",
    )


def lighter_optimizer(situation: Situation) -> Remedy:
    """Keep the optimizer's state in 8 bits."""
    state = situation.category_bytes(Category.OPTIMIZER_STATE)
    return Remedy(
        id="lighter_optimizer",
        change="Keep the optimizer's state in 8 bits, or take an optimizer with less of it",
        how="bitsandbytes.optim.AdamW8bit(model.parameters())  # or: torch.optim.SGD(..., momentum=0)",
        frees_bytes=3 * state // 4 if state else None,
        cost="a further package and less precise state; SGD trains differently",
    )


def no_foreach(situation: Situation) -> Remedy | None:
    """Update one tensor at a time, so that temporaries are those of one tensor."""
    if makes_state(situation):
        return None  # there are no temporaries yet
    weights = situation.category_bytes(Category.WEIGHTS)
    return Remedy(
        id="no_foreach",
        change="Update parameters one after the other, or with the fused kernel, instead of all at once",
        how="torch.optim.AdamW(model.parameters(), fused=True)  # or: foreach=False",
        frees_bytes=weights or None,
        cost="`foreach=False` is slower; `fused=True` is not",
    )


def shard_optimizer(_situation: Situation) -> Remedy:
    """Split the state among the ranks."""
    return Remedy(
        id="shard_optimizer",
        change="With several devices, split gradients and optimizer state among them",
        how="torch.distributed.fsdp.fully_shard(model)  # or ZeRO stage 2",
        frees_bytes=None,
        cost="communication in every step",
    )


def load_on_host(situation: Situation) -> Remedy:
    """Load the checkpoint where there is room, and let go of it."""
    line = situation.facts.user_line if situation.phase is TrainingPhase.CHECKPOINT_LOAD else None
    return Remedy(
        id="load_on_host",
        change="Load the checkpoint onto the host, copy it into the model, and drop it",
        how=f'model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True)){as_comment(line)}',
        frees_bytes=None,
        cost="none; host memory for the checkpoint while it loads (less with `mmap=True`)",
    )


RULES: Final = {
    CauseId.MODEL_TOO_LARGE: (room_for_others, lighter_weights, spread_model, smaller_model),
    CauseId.OPTIMIZER_STATE: (lighter_optimizer, no_foreach, shard_optimizer),
    CauseId.CHECKPOINT_LOAD: (load_on_host,),
}
"""Remedies by the cause that they are for."""
