"""Remedies in the training step: the batch and its activations, the model and its optimizer."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from oomdoctor.diagnose.device_remedies import vocabulary
from oomdoctor.diagnose.evidence import as_comment
from oomdoctor.diagnose.training_causes import GROWS_WITH_THE_BATCH, makes_state
from oomdoctor.results import Category, CauseId, Remedy, TrainingPhase

if TYPE_CHECKING:
    from oomdoctor.diagnose.evidence import Situation
    from oomdoctor.results import MemoryTrend


_LOGITS: Final = re.compile(r"cross_entropy|log_softmax|nll_loss|CrossEntropyLoss|lm_head|logits", re.IGNORECASE)
_ATTENTION: Final = re.compile(r"attn|attention|q @ k|matmul\(q|query|softmax\(", re.IGNORECASE)
_BATCH_MATTERS: Final = (None, TrainingPhase.FORWARD, TrainingPhase.BACKWARD, TrainingPhase.EVALUATION,
                         TrainingPhase.BATCH_TO_DEVICE)  # fmt: skip


def smaller_micro_batch(situation: Situation) -> Remedy | None:
    """Halve the micro-batch; accumulation keeps the effective batch."""
    size = situation.batch_size
    if size == 1 or situation.phase not in _BATCH_MATTERS or situation.is_server:
        return None
    grown = None if situation.leaks else situation.category_bytes(*GROWS_WITH_THE_BATCH)
    to = "" if size is None else f" to {size // 2}"
    found = "; `oomdoctor probe` finds the exact size that fits" if situation.device == "cuda" else ""
    return Remedy(
        id="smaller_micro_batch",
        change=f"Halve the micro-batch{to} and accumulate gradients over twice the steps, so that the effective batch "
        f"stays{found}",
        how=f"oomdoctor probe model.py --target-batch {size or 256}" if situation.device == "cuda" else None,
        frees_bytes=grown // 2 if grown else None,
        cost="about the same time a sample, as long as the device stays busy; batch norm sees fewer samples",
    )


def activation_checkpointing(situation: Situation) -> Remedy | None:
    """Keep only the inputs of blocks, and compute the rest again in backward."""
    if situation.phase not in (None, TrainingPhase.FORWARD, TrainingPhase.BACKWARD) or situation.is_server:
        return None
    return Remedy(
        id="activation_checkpointing",
        change="Recompute activations in the backward pass instead of keeping them",
        how="x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)",
        frees_bytes=None if situation.leaks else situation.category_bytes(Category.ACTIVATIONS) or None,
        cost="20 to 30 % more time a step; the inputs of the blocks stay in memory",
    )


def lower_precision(situation: Situation) -> Remedy | None:
    """Halve activations by computing in 16 bits."""
    if situation.phase not in _BATCH_MATTERS:
        return None
    grown = None if situation.leaks else situation.category_bytes(Category.ACTIVATIONS)
    return Remedy(
        id="bf16_autocast",
        change="Compute in bfloat16 under autocast, if it does not yet",
        how=f'with torch.autocast("{vocabulary(situation.device).torch_name}", dtype=torch.bfloat16):',
        frees_bytes=grown // 2 if grown else None,
        cost="less precise products; weights and optimizer state stay in 32 bits",
    )


def memory_for_others(situation: Situation) -> Remedy | None:
    """An inference server takes its memory beforehand; what it computes with must fit beside that."""
    if not situation.is_server:
        return None
    return Remedy(
        id="room_for_others",
        change="Let the server's cache take less of the device, so that memory is left for the computation",
        how="--gpu-memory-utilization 0.85 --max-num-seqs 64 --enforce-eager",
        frees_bytes=None,
        cost="fewer requests at once; without CUDA graphs slower ones",
    )


def shorter_samples(situation: Situation) -> Remedy | None:
    """Make the sample smaller, since a batch of one does not fit."""
    if situation.batch_size != 1:
        return None
    return Remedy(
        id="shorter_samples",
        change="Cut the longest sequences or the resolution: the batch is one sample already",
        how=None,
        frees_bytes=None,
        cost="the model sees less of those samples",
    )


def chunked_loss(situation: Situation) -> Remedy | None:
    """Never hold the whole table of logits."""
    if not _LOGITS.search(situation.code):
        return None
    return Remedy(
        id="chunked_loss",
        change="Compute the loss in chunks of tokens, so that the logits never exist as a whole",
        how="loss = sum(cross_entropy(head(h), t, reduction='sum') for h, t in zip(hidden.chunk(8), targets.chunk(8)))",
        frees_bytes=situation.facts.tried_bytes,
        cost="little time; checkpoint each chunk where gradients are needed",
    )


def fused_attention(situation: Situation) -> Remedy | None:
    """Never hold the whole matrix of attention scores."""
    if not _ATTENTION.search(situation.code) or _LOGITS.search(situation.code):
        return None
    return Remedy(
        id="fused_attention",
        change="Use fused attention, which never holds the matrix of scores",
        how="torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)",
        frees_bytes=situation.facts.tried_bytes,
        cost="none; masks of some shapes fall back to the slow kernel",
    )


def check_shapes(situation: Situation) -> Remedy:
    """A size beyond the device is most often a mistake."""
    return Remedy(
        id="check_shapes",
        change="Print the shapes before the line that ran out: a broadcast, an outer product or a wrong dimension "
        "is behind most requests of this size",
        how=f"print(x.shape, y.shape){as_comment(situation.facts.user_line)}",
        frees_bytes=situation.facts.tried_bytes,
        cost="none",
    )


def no_grad(situation: Situation) -> Remedy:
    """Evaluate without a graph."""
    return Remedy(
        id="no_grad",
        change="Evaluate without recording a graph",
        how="with torch.inference_mode():",
        frees_bytes=situation.category_bytes(Category.ACTIVATIONS) or None,
        cost="none",
    )


def move_outputs(_situation: Situation) -> Remedy:
    """Do not collect on the device what is only compared later."""
    return Remedy(
        id="move_outputs",
        change="Collect outputs on the host, not on the device",
        how="outputs.append(logits.detach().cpu())",
        frees_bytes=None,
        cost="a copy a batch",
    )


def _grown(trend: MemoryTrend) -> int:
    """Return the bytes that leaked until the last reading; readings that begin late have seen only a part of it."""
    seen = trend.last_bytes - trend.first_bytes
    return max(0, min(trend.last_bytes, max(seen, trend.bytes_per_step * trend.last_step)))


def drop_graph(situation: Situation) -> Remedy:
    """Keep numbers, not tensors with their graphs."""
    grown = None
    if situation.snapshot is not None and situation.snapshot.growing:
        grown = sum(max(0, line.last_bytes - line.first_bytes) for line in situation.snapshot.growing)
    elif situation.trend is not None and situation.trend.growing:
        grown = _grown(situation.trend)
    return Remedy(
        id="drop_graph",
        change="Detach what outlives a step from its graph, and move it off the device",
        how="total_loss += loss.item()  # or: kept.append(output.detach().cpu())",
        frees_bytes=grown,
        cost="`.item()` waits for the device once a step",
    )


STEP_RULES: Final = {
    CauseId.SINGLE_HUGE_ALLOCATION: (chunked_loss, fused_attention, check_shapes, shorter_samples, smaller_micro_batch),
    CauseId.LEAK_ACROSS_STEPS: (drop_graph,),
    CauseId.MISSING_NO_GRAD: (no_grad, move_outputs),
    CauseId.BATCH_TOO_LARGE: (
        memory_for_others,
        smaller_micro_batch,
        shorter_samples,
        activation_checkpointing,
        lower_precision,
        chunked_loss,
        fused_attention,
    ),
}
"""Remedies by the cause that they are for."""


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
    """Load the checkpoint on the host, and drop it after use."""
    line = situation.facts.user_line if situation.phase is TrainingPhase.CHECKPOINT_LOAD else None
    return Remedy(
        id="load_on_host",
        change="Load the checkpoint onto the host, copy it into the model, and drop it",
        how=f'model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True)){as_comment(line)}',
        frees_bytes=None,
        cost="none; host memory for the checkpoint while it loads (less with `mmap=True`)",
    )


MODEL_RULES: Final = {
    CauseId.MODEL_TOO_LARGE: (memory_for_others, lighter_weights, spread_model, smaller_model),
    CauseId.OPTIMIZER_STATE: (lighter_optimizer, no_foreach, shard_optimizer),
    CauseId.CHECKPOINT_LOAD: (load_on_host,),
}
"""Remedies by the cause that they are for."""
