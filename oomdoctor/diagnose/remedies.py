"""Choose remedies: those of `remedies.toml` that fit the causes of a failure, best first."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from oomdoctor.diagnose.evidence import as_comment
from oomdoctor.diagnose.tables import read_table
from oomdoctor.diagnose.training_causes import GROWS_WITH_THE_BATCH, makes_state
from oomdoctor.results import Category, CauseId, Confidence, Remedy, TrainingPhase

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from oomdoctor.diagnose.evidence import Situation
    from oomdoctor.results import Cause, MemoryDevice


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The words of one kind of device.

    Attributes:
        status: Command that lists processes and memory.
        visible: Environment variable that chooses the device; None where there is only one.
        torch_name: What torch calls it: `torch.<name>`, and `torch.autocast("<name>")`; ROCm goes by `cuda`.
        allocated: Expression for the bytes in tensors.
    """

    status: str
    visible: str | None
    torch_name: str
    allocated: str


def _vocabulary(status: str, visible: str | None, torch_name: str) -> Vocabulary:
    return Vocabulary(status, visible, torch_name, f"torch.{torch_name}.memory_allocated()")


_CUDA = _vocabulary("nvidia-smi", "CUDA_VISIBLE_DEVICES", "cuda")

_VOCABULARIES: Mapping[str, Vocabulary] = MappingProxyType(
    {
        "hip": _vocabulary("rocm-smi --showpids", "HIP_VISIBLE_DEVICES", "cuda"),
        "xpu": _vocabulary("xpu-smi ps", "ZE_AFFINITY_MASK", "xpu"),
        "npu": _vocabulary("npu-smi info", "ASCEND_RT_VISIBLE_DEVICES", "npu"),
        "hpu": _vocabulary("hl-smi", "HABANA_VISIBLE_MODULES", "hpu"),
        "mps": Vocabulary("top -o mem", None, "mps", "torch.mps.current_allocated_memory()"),
    }
)


def vocabulary(device: MemoryDevice) -> Vocabulary:
    """Return the words for a device; CUDA's where it has none of its own."""
    return _VOCABULARIES.get(device, _CUDA)


# --- remedies by cause -----------------------------------------------------------------------------------------------


def _remedy(name: str, situation: Situation, frees_bytes: int | None = None, **words: object) -> Remedy:
    """Fill in a remedy of the file.

    Args:
        name: Its id.
        situation: The failure, whose facts tell what it frees.
        frees_bytes: What it frees at most, where that is no fact of the error.
        words: What stands for the words in braces.
    """
    entry = _entries()[name]
    change, how, frees = entry["change"], entry.get("how"), entry.get("frees")
    return Remedy(
        id=name,
        change=change.format(**words) if words else change,
        how=how.format(**words) if words and how else how,
        frees_bytes=getattr(situation.facts, frees) if frees else frees_bytes or None,
        cost=entry["cost"],
    )


@cache
def _entries() -> dict[str, dict[str, Any]]:
    return {entry["id"]: entry for entry in read_table(__file__)["remedy"]}


def _stop_other_process(situation: Situation) -> Remedy:
    pids = [str(process.pid) for process in situation.others[:8]]
    if pids:
        command, frees = f"ps -fp {','.join(pids)}  # then: kill {' '.join(pids)}", situation.others_bytes
    else:
        status = vocabulary(situation.device).status
        command, frees = f"{status}  # then stop what should not run there", situation.outside_bytes or 0
    return _remedy("stop_other_process", situation, frees, command=command)


def _other_device(situation: Situation) -> Remedy | None:
    variable = vocabulary(situation.device).visible
    if variable is None:
        return None
    index = 0 if situation.facts.gpu_index else 1
    return _remedy("other_device", situation, variable=variable, index=index)


def _expandable_segments(situation: Situation) -> Remedy | None:
    settings = situation.case.allocator_settings or ""
    if situation.device not in _CUDA_LIKE or "expandable_segments:True" in settings:
        return None
    return _remedy("max_split_size" if _OLD_TEMPLATE in situation.message else "expandable_segments", situation)


def _mps_watermark(situation: Situation) -> Remedy | None:
    """Return the last resort on an Apple GPU, whatever the cause; None elsewhere."""
    if not situation.on_gpu or situation.device != "mps" or situation.facts.mps_max_bytes is None:
        return None
    return _remedy("mps_watermark", situation)


def _larger_page_file(situation: Situation) -> Remedy | None:
    # Windows must be able to back every byte that is asked for.
    return _remedy("larger_page_file", situation) if "1455" in situation.message else None


def _no_pinned_memory(situation: Situation) -> Remedy | None:
    return None if situation.device == "cpu" else _remedy("no_pinned_memory", situation)


def _for_other_error(situation: Situation) -> Remedy | None:
    name = _BY_KIND.get(situation.kind)
    return None if name is None else _remedy(name, situation)


def _smaller_micro_batch(situation: Situation) -> Remedy | None:
    size = situation.batch_size
    if size == 1 or situation.phase not in _BATCH_MATTERS or situation.is_server:
        return None
    frees = (_per_step(situation, *GROWS_WITH_THE_BATCH) or 0) // 2
    to = "" if size is None else f" to {size // 2}"
    hint = "; `oomdoctor probe` finds the exact size that fits" if situation.device == "cuda" else ""
    found = _remedy("smaller_micro_batch", situation, frees, to=to, hint=hint, target=size or 256)
    return found if situation.device == "cuda" else replace(found, how=None)


def _activation_checkpointing(situation: Situation) -> Remedy | None:
    if situation.phase not in (None, TrainingPhase.FORWARD, TrainingPhase.BACKWARD) or situation.is_server:
        return None
    return _remedy("activation_checkpointing", situation, _per_step(situation, Category.ACTIVATIONS))


def _lower_precision(situation: Situation) -> Remedy | None:
    if situation.phase not in _BATCH_MATTERS:
        return None
    frees = (_per_step(situation, Category.ACTIVATIONS) or 0) // 2
    return _remedy("bf16_autocast", situation, frees, device=vocabulary(situation.device).torch_name)


def _per_step(situation: Situation, *categories: Category) -> int | None:
    """Return the bytes of one step; None where a leak mixes them with those of earlier ones."""
    return None if situation.leaks else situation.category_bytes(*categories)


def _memory_for_others(situation: Situation) -> Remedy | None:
    # An inference server takes its memory beforehand; what it computes with must fit beside that.
    return _remedy("room_for_others", situation) if situation.is_server else None


def _shorter_samples(situation: Situation) -> Remedy | None:
    return _remedy("shorter_samples", situation) if situation.batch_size == 1 else None


def _chunked_loss(situation: Situation) -> Remedy | None:
    return _remedy("chunked_loss", situation) if _LOGITS.search(situation.code) else None


def _fused_attention(situation: Situation) -> Remedy | None:
    if not _ATTENTION.search(situation.code) or _LOGITS.search(situation.code):
        return None
    return _remedy("fused_attention", situation)


def _check_shapes(situation: Situation) -> Remedy:
    return _remedy("check_shapes", situation, comment=as_comment(situation.facts.user_line))


def _no_grad(situation: Situation) -> Remedy:
    return _remedy("no_grad", situation, situation.category_bytes(Category.ACTIVATIONS))


def _drop_graph(situation: Situation) -> Remedy:
    grown = None
    if situation.snapshot is not None and situation.snapshot.growing:
        grown = sum(max(0, line.last_bytes - line.first_bytes) for line in situation.snapshot.growing)
    elif (trend := situation.trend) is not None and trend.growing:
        # Readings that begin late have seen only a part of what leaked.
        seen = max(trend.last_bytes - trend.first_bytes, trend.bytes_per_step * trend.last_step)
        grown = max(0, min(trend.last_bytes, seen))
    return replace(_remedy("drop_graph", situation), frees_bytes=grown)


def _lighter_weights(situation: Situation) -> Remedy:
    return _remedy("lighter_weights", situation, (situation.category_bytes(Category.WEIGHTS) or 0) // 2)


def _lighter_optimizer(situation: Situation) -> Remedy:
    state = situation.category_bytes(Category.OPTIMIZER_STATE) or 0
    return _remedy("lighter_optimizer", situation, 3 * state // 4)


def _no_foreach(situation: Situation) -> Remedy | None:
    if makes_state(situation):
        return None  # there are no temporaries yet
    return _remedy("no_foreach", situation, situation.category_bytes(Category.WEIGHTS))


def _load_on_host(situation: Situation) -> Remedy:
    line = situation.facts.user_line if situation.phase is TrainingPhase.CHECKPOINT_LOAD else None
    return _remedy("load_on_host", situation, comment=as_comment(line))


_CUDA_LIKE: Final = ("cuda", "hip")
_OLD_TEMPLATE: Final = "total capacity;"  # up to torch 2.0, which has no expandable segments
_LOGITS: Final = re.compile(r"cross_entropy|log_softmax|nll_loss|CrossEntropyLoss|lm_head|logits", re.IGNORECASE)
_ATTENTION: Final = re.compile(r"attn|attention|q @ k|matmul\(q|query|softmax\(", re.IGNORECASE)
_BATCH_MATTERS: Final = (
    None,
    TrainingPhase.FORWARD,
    TrainingPhase.BACKWARD,
    TrainingPhase.EVALUATION,
    TrainingPhase.BATCH_TO_DEVICE,
)
_BY_KIND: Final = {
    "kernel-resources": "smaller_kernel_blocks",
    "disk-full": "free_disk",
    "device-assert": "find_assert",
    "illegal-address": "find_illegal_access",
}
"""Remedies for errors that are not about memory, by the error's kind."""

_Rule: TypeAlias = "str | Callable[[Situation], Remedy | None]"

REMEDY_RULES: Final[dict[CauseId, tuple[_Rule, ...]]] = {
    CauseId.OTHER_PROCESS: (_stop_other_process, _other_device),
    CauseId.MEMORY_FRACTION_CAP: ("raise_cap",),
    CauseId.FRAGMENTATION: (_expandable_segments, "largest_batch_first"),
    CauseId.SINGLE_HUGE_ALLOCATION: (
        _chunked_loss,
        _fused_attention,
        _check_shapes,
        _shorter_samples,
        _smaller_micro_batch,
    ),
    CauseId.LEAK_ACROSS_STEPS: (_drop_graph,),
    CauseId.MISSING_NO_GRAD: (_no_grad, "move_outputs"),
    CauseId.BATCH_TOO_LARGE: (
        _memory_for_others,
        _smaller_micro_batch,
        _shorter_samples,
        _activation_checkpointing,
        _lower_precision,
        _chunked_loss,
        _fused_attention,
    ),
    CauseId.MODEL_TOO_LARGE: (_memory_for_others, _lighter_weights, "spread_model", "smaller_model"),
    CauseId.OPTIMIZER_STATE: (_lighter_optimizer, _no_foreach, "shard_optimizer"),
    CauseId.CHECKPOINT_LOAD: (_load_on_host,),
    CauseId.HOST_OOM: (_no_pinned_memory, _larger_page_file, "fewer_workers", "more_host_memory"),
    CauseId.SHM: ("larger_shared_memory", "no_workers"),
    CauseId.SIZE_LIMIT: ("smaller_tensors",),
    CauseId.KV_CACHE_NO_ROOM: ("room_for_cache",),
    CauseId.NOT_OOM: (_for_other_error,),
}
"""Remedies by the cause that they are for: an id, or a rule that proposes one where it makes sense."""


# --- the best of them ------------------------------------------------------------------------------------------------

_MOST: Final = 8
_REMEDY_ORDER: Final = tuple(Confidence)


def choose_remedies(situation: Situation, causes: Sequence[Cause]) -> tuple[Remedy, ...]:
    """Return the changes to make, best first, at most 8.

    What is for a more certain cause comes first; among those for equally certain ones, what is known to free enough for
    the request that failed, then what is not known, then what is known to free too little. Where a cause is certain,
    what would only help with causes that are merely possible is left out.
    """
    if causes and causes[0].confidence is Confidence.CERTAIN and causes[0].id is not CauseId.UNKNOWN:
        causes = [cause for cause in causes if cause.confidence is not Confidence.POSSIBLE]
    found: dict[str, tuple[int, int, Remedy]] = {}
    for cause in causes:
        for rule in REMEDY_RULES.get(cause.id, ()):
            remedy = _proposed(rule, situation)
            if remedy is not None:
                order = _REMEDY_ORDER.index(cause.confidence), _shortfall(remedy, situation)
                found.setdefault(remedy.id, (*order, remedy))
    if (watermark := _mps_watermark(situation)) is not None:
        found[watermark.id] = (len(_REMEDY_ORDER), 0, watermark)
    ordered = sorted(found.values(), key=lambda entry: entry[:2])
    return tuple(remedy for _, _, remedy in ordered)[:_MOST]


def _proposed(rule: _Rule, situation: Situation) -> Remedy | None:
    """Return a rule's remedy; what is written for PyTorch is not proposed for another framework."""
    remedy = _remedy(rule, situation) if isinstance(rule, str) else rule(situation)
    written_for_torch = None if remedy is None else _entries()[remedy.id].get("torch")
    if remedy is None or situation.is_torch or written_for_torch is None:
        return remedy
    return replace(remedy, how=None) if written_for_torch == "how" else None


def _shortfall(remedy: Remedy, situation: Situation) -> int:
    """Return 0 where a remedy is known to free enough, 1 where nobody knows, 2 where it is known not to."""
    tried, free = situation.facts.tried_bytes, situation.facts.free_bytes or 0
    if remedy.frees_bytes is None or tried is None:
        return 1
    return 0 if remedy.frees_bytes + free >= tried else 2
