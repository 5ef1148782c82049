"""Choose remedies: those of `remedies.toml` that fit the causes of a failure, best first."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from oomdoctor.diagnose import proposed_commands
from oomdoctor.diagnose.device_causes import has_free_memory
from oomdoctor.diagnose.evidence import as_comment
from oomdoctor.diagnose.tables import compiled, read_table
from oomdoctor.diagnose.training_causes import GROWS_WITH_THE_BATCH, makes_state
from oomdoctor.request import command_line
from oomdoctor.results import Category, CauseId, Confidence, Remedy, TrainingPhase
from oomdoctor.units import GIB

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from oomdoctor.diagnose.evidence import Situation
    from oomdoctor.results import Cause, MemoryDevice


_TABLE: Final = read_table(__file__)
_ENTRIES: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType({entry["id"]: entry for entry in _TABLE["remedy"]})
REMEDIES: Final[Mapping[CauseId, tuple[str, ...]]] = MappingProxyType(
    {CauseId(cause): tuple(names) for cause, names in _TABLE["causes"].items()}
)
"""Ids of the remedies by the cause that they are for, best first."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The words of one kind of device; `remedies.toml` describes them."""

    status: str
    torch_name: str
    visible: str | None = None
    allocated: str = "torch.{torch_name}.memory_allocated()"


def vocabulary(device: MemoryDevice) -> Vocabulary:
    """Return the words for a device; CUDA's where it has none of its own."""
    words = Vocabulary(**_TABLE["devices"].get(device, _TABLE["devices"]["cuda"]))
    return replace(words, allocated=words.allocated.format(torch_name=words.torch_name))


# --- conditions: a remedy that is not listed is proposed wherever its cause is --------------------------------------

_CUDA_LIKE: Final = ("cuda", "hip")
_OLD_TEMPLATE: Final = "total capacity;"  # up to torch 2.0, which has no expandable segments
_LOGITS: Final = re.compile(r"cross_entropy|log_softmax|nll_loss|CrossEntropyLoss|lm_head|logits", re.IGNORECASE)
_ATTENTION: Final = re.compile(r"attn|attention|q @ k|matmul\(q|query|softmax\(", re.IGNORECASE)
_IN_TRAINING: Final = (None, TrainingPhase.FORWARD, TrainingPhase.BACKWARD)
_TRAINS: Final = (*_IN_TRAINING, TrainingPhase.OPTIMIZER_STEP)
_BATCH_MATTERS: Final = (*_IN_TRAINING, TrainingPhase.EVALUATION, TrainingPhase.BATCH_TO_DEVICE)


_WITHOUT_BFLOAT16: Final = compiled(_TABLE["cards"]["without_bfloat16"])


def _may_set_expandable(situation: Situation) -> bool:
    settings = situation.case.allocator_settings or ""
    return situation.device in _CUDA_LIKE and "expandable_segments:True" not in settings


def _lacks_bfloat16(situation: Situation) -> bool:
    """Return whether a table, a report or the log before the error names a card that computes no bfloat16."""
    named = [*situation.case.device_names, *([situation.card.name] if situation.card is not None else [])]
    lines = () if named or situation.event is None else situation.event.window.lines
    return any(_WITHOUT_BFLOAT16.search(text) for text in (*named, *lines))


def _one_large_array(situation: Situation) -> bool:
    return situation.device == "cpu" and (situation.facts.tried_bytes or 0) >= GIB


def _lacks_addresses(situation: Situation) -> bool:
    limited = situation.case.address_space_bytes is not None and has_free_memory(situation)
    return limited or situation.maps_memory


def _failed_foreach(situation: Situation) -> bool:
    """Return whether a temporary of a `foreach` optimizer found no room."""
    frames = () if situation.event is None else situation.event.frames
    foreach = (
        any((frame.function or "").startswith("_multi_tensor") for frame in frames) or "_foreach_" in situation.code
    )
    return foreach and not makes_state(situation)


def _is_of_kind(kind: str) -> Callable[[Situation], bool]:
    return lambda situation: situation.kind == kind


_CONDITIONS: Final[Mapping[str, Callable[[Situation], bool]]] = MappingProxyType({
    "other_device": lambda one: vocabulary(one.device).visible is not None,
    "expandable_segments": lambda one: _may_set_expandable(one) and _OLD_TEMPLATE not in one.message,
    "max_split_size": lambda one: _may_set_expandable(one) and _OLD_TEMPLATE in one.message,
    # Windows must be able to back every byte that is asked for.
    "larger_page_file": lambda one: "1455" in one.message,
    "no_pinned_memory": lambda one: one.device != "cpu" and not _lacks_addresses(one),
    "smaller_kernel_blocks": _is_of_kind("kernel-resources"),
    "free_disk": _is_of_kind("disk-full"),
    "find_assert": _is_of_kind("device-assert"),
    "find_illegal_access": _is_of_kind("illegal-address"),
    "smaller_micro_batch": lambda one: one.batch_size != 1 and one.phase in _BATCH_MATTERS and not one.is_server,
    "activation_checkpointing": lambda one: one.phase in _IN_TRAINING and not one.is_server,
    "rematerialise": lambda one: one.is_xla,
    "bf16_autocast": lambda one: one.phase in _BATCH_MATTERS and not _lacks_bfloat16(one),
    "fp16_autocast": lambda one: one.phase in _BATCH_MATTERS and _lacks_bfloat16(one),
    "xla_memory": lambda one: one.is_xla,
    "tensorflow_growth": lambda one: one.is_tensorflow,
    "offload_modules": lambda one: one.kind == "quantized-offload",
    "choose_rank_device": lambda one: one.kind != "nccl-allocation" or "barrier" in one.code,
    "address_space": _lacks_addresses,
    "more_host_memory": lambda one: not _lacks_addresses(one),
    "smaller_host_array": _one_large_array,
    "fewer_workers": lambda one: not _one_large_array(one) and not _lacks_addresses(one),
    # An inference server takes its memory beforehand; what it computes with must fit beside that.
    "room_for_others": lambda one: one.is_server,
    "shorter_samples": lambda one: one.batch_size == 1,
    "measured_remedies": lambda one: one.device == "cuda" and one.phase in _TRAINS and not one.is_server,
    "chunked_loss": lambda one: _LOGITS.search(one.code) is not None,
    "fused_attention": lambda one: _ATTENTION.search(one.code) is not None and _LOGITS.search(one.code) is None,
    "no_foreach": lambda one: not makes_state(one),  # there are no temporaries yet
})  # fmt: skip


# --- what is filled in, and what is freed, where the table does not tell ---------------------------------------------


def _remedy(name: str, situation: Situation) -> Remedy:
    """Fill in a remedy of the table."""
    entry, words = _ENTRIES[name], _words(name, situation)
    how, fact, part = entry.get("how"), entry.get("frees"), entry.get("part")
    frees: int | None = None
    if fact is not None:
        frees = getattr(situation.facts, fact)
    elif part is not None and not (entry.get("step") and situation.leaks):
        frees = int((situation.category_bytes(Category(part)) or 0) * entry.get("share", 1)) or None
    elif name in _FREED:
        frees = _FREED[name](situation) or None
    return Remedy(name, entry["change"].format(**words), how and how.format(**words), frees, entry["cost"])


def _words(name: str, situation: Situation) -> dict[str, object]:
    """Return what stands for the words in braces."""
    device, size = vocabulary(situation.device), situation.batch_size
    pids = [str(process.pid) for process in situation.others[:8]]
    stop = f"ps -fp {','.join(pids)}  # then: kill {' '.join(pids)}"
    # The user's line is one of loading where that is what ran out, and of a wrong shape elsewhere.
    loads = situation.phase is TrainingPhase.CHECKPOINT_LOAD
    line = situation.facts.user_line if loads or name != "load_on_host" else None
    return {
        "command": stop if pids else f"{device.status}  # then stop what should not run there",
        "visible": device.visible,
        "index": 0 if situation.facts.gpu_index else 1,
        "torch_name": device.torch_name,
        "comment": as_comment(line),
        "command_line": command_line(situation.case.command or ("python", "train.py")),
        "probe_batch": proposed_commands.probe(situation),
        "prescribe": proposed_commands.prescribe(situation),
        "patch": "code printed" if situation.case.command else "patch written",  # a patch is made of files alone
        "fits": f"micro-batch {size}" if size else "a larger micro-batch",
        "probe_elsewhere": proposed_commands.probe_elsewhere(situation),
        "to": "" if size is None else f" to {size // 2}",
        "hint": "; `oomdoctor probe` finds the exact size that fits" if situation.device == "cuda" else "",
    }


def _grown_bytes(situation: Situation) -> int | None:
    if situation.snapshot is not None and situation.snapshot.growing:
        return sum(max(0, line.last_bytes - line.first_bytes) for line in situation.snapshot.growing)
    trend = situation.trend
    if trend is None or not trend.growing:
        return None
    # Readings that begin late have seen only a part of what leaked.
    seen = max(trend.last_bytes - trend.first_bytes, trend.bytes_per_step * trend.last_step)
    return max(0, min(trend.last_bytes, seen))


def _half_of_batch(situation: Situation) -> int | None:
    return None if situation.leaks else (situation.category_bytes(*GROWS_WITH_THE_BATCH) or 0) // 2


_FREED: Final[Mapping[str, Callable[[Situation], int | None]]] = MappingProxyType({
    "stop_other_process": lambda one: one.others_bytes or one.outside_bytes,
    "smaller_micro_batch": _half_of_batch,
    "drop_graph": _grown_bytes,
})  # fmt: skip


# --- the best of them ------------------------------------------------------------------------------------------------

_MOST: Final = 8
_CAUSES_OF_GROWTH: Final = (CauseId.LEAK_ACROSS_STEPS, CauseId.MISSING_NO_GRAD)
_REMEDY_ORDER: Final = tuple(Confidence)


def choose_remedies(situation: Situation, causes: Sequence[Cause]) -> tuple[Remedy, ...]:
    """Return the changes to make, best first, at most 8.

    What is for a more certain cause comes first; among those for equally certain ones, what is known to free enough for
    the request that failed, then what is not known, then what is known to free too little. Where a cause is certain,
    what would only help with causes that are merely possible is left out.
    """
    if causes and causes[0].id is CauseId.LEAK_ACROSS_STEPS and situation.leaks:
        causes = [cause for cause in causes if cause.id in _CAUSES_OF_GROWTH]  # nothing else helps for long
    if causes and causes[0].confidence is Confidence.CERTAIN and causes[0].id is not CauseId.UNKNOWN:
        causes = [cause for cause in causes if cause.confidence is not Confidence.POSSIBLE]
    found: dict[str, tuple[int, int, Remedy]] = {}
    for cause in causes:
        for name in REMEDIES.get(cause.id, ()):
            if name not in found and (remedy := _proposed(name, situation)) is not None:
                found[name] = (_REMEDY_ORDER.index(cause.confidence), _shortfall(remedy, situation), remedy)
    if situation.on_gpu and situation.device == "mps" and situation.facts.mps_max_bytes is not None:
        # the last resort on an Apple GPU, whatever the cause
        found["mps_watermark"] = (len(_REMEDY_ORDER), 0, _remedy("mps_watermark", situation))
    ordered = sorted(found.values(), key=lambda entry: entry[:2])
    return tuple(remedy for _, _, remedy in ordered)[:_MOST]


def _proposed(name: str, situation: Situation) -> Remedy | None:
    """Return a remedy where it makes sense; what is written for PyTorch is not proposed for another framework."""
    written_for_torch = None if situation.is_torch else _ENTRIES[name].get("torch")
    if (name in _CONDITIONS and not _CONDITIONS[name](situation)) or written_for_torch == "only":
        return None
    remedy = _remedy(name, situation)
    probed = name != "smaller_micro_batch" or situation.device == "cuda"
    return remedy if probed and written_for_torch is None else replace(remedy, how=None)


def _shortfall(remedy: Remedy, situation: Situation) -> int:
    """Return 0 where a remedy is known to free enough, 1 where nobody knows, 2 where it is known not to.

    What a failed temporary of a `foreach` optimizer needs is that it is not made, before any lighter state.
    """
    if remedy.id == "no_foreach" and _failed_foreach(situation):
        return -1
    tried, free = situation.facts.tried_bytes, situation.facts.free_bytes or 0
    if remedy.frees_bytes is None or tried is None:
        return 1
    return 0 if remedy.frees_bytes + free >= tried else 2
