"""Rule on means over tokens that are accumulated (OOM207)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from oomdoctor.lint.flow.events import Action, Event, Loop, Run, model_origins
from oomdoctor.lint.flow.state import text_of
from oomdoctor.lint.module import Module, walk
from oomdoctor.lint.patterns.accumulation import accumulations, measured_by
from oomdoctor.lint.patterns.iterations import stored_in
from oomdoctor.lint.rule import Hit, Subject, read_rules

_TOKENS: Final = re.compile(
    r"(?:mask|valid|keep|pad|-100|ignore)\w*(?:\[.*\])?[\s)]*(?:\.\w+\([^()]*\))*\.sum\(|\bn_?tok|num_?tok|tok\w*_count|num_(?:valid|target|loss_tok)"
    r"|count_nonzero|-100\)\.(?:sum|count)",
    re.IGNORECASE,
)
"""A number of tokens, as what a loss is divided by."""
_PADDING: Final = re.compile(r"pad|-100|ignore_i|^0$|label_ignore", re.IGNORECASE)
"""An `ignore_index` that stands for padding; 255 is an image's border, -1 is what packed blocks never have."""
_TEXT: Final = re.compile(r"input_ids|\bids\b|token|vocab|\btext|sentence|sequence|caption|transcript", re.IGNORECASE)
_ENTROPIES: Final = frozenset({"torch.nn.functional.cross_entropy", "torch.nn.functional.nll_loss"})
_ENTROPY_CLASSES: Final = frozenset({"torch.nn.CrossEntropyLoss", "torch.nn.NLLLoss"})
_WRITERS: Final = re.compile(r"^transformers\..*(?:Seq2Seq|ForConditionalGeneration|Vision2Seq)")
_CAUSAL: Final = re.compile(r"^transformers\..*(?:CausalLM|LMHeadModel)")
_PADDED: Final = re.compile(
    r"-100|ignore_index|DataCollatorForSeq2Seq|DataCollatorForCompletionOnly|pad_sequence|label_pad|tokenizer\.pad\("
    r"|padding\s*=\s*(?:True|[\"']longest)"
)
_COUNTS_WINDOWS: Final = re.compile(r"num_items_in_batch|average_tokens_across_devices")
_HELP: Final = "sum the loss over tokens, and divide by the number of tokens in the whole window"


def token_mean_accumulated(subject: Subject) -> Iterator[Hit]:
    """OOM207: a mean over each micro-batch's own tokens is accumulated."""
    for run in subject.runs:
        for event, loop in _accumulated(run):
            mean = None if _COUNTS_WINDOWS.search(event.module.text) else _token_mean(run, event, loop)
            if mean is not None and not any(
                isinstance(node, ast.BinOp | ast.AugAssign)
                and isinstance(node.op, ast.Mult)
                and any(re.search(r"\.sum\(|tok|count|num_", text_of(side)) for side in _sides(node))
                for node in walk(loop.node)
            ):
                message = f"{mean} is a mean over this micro-batch's tokens: tokens of short micro-batches weigh more"
                yield Hit.at(event, message, help=f"{_HELP}; {measured_by(run)}")


def _accumulated(run: Run) -> Iterator[tuple[Event, Loop]]:
    """Backward passes whose gradients add up, with the loop over micro-batches."""
    for found in accumulations(run):
        for event in found.backwards:
            yield event, found.loop
    for event in run.of(Action.BACKWARD):
        if event.context.managed == "accelerate" and event.loop is not None and _accumulates(event.module):
            yield event, event.loop


def _accumulates(module: Module) -> bool:
    return re.search(r"gradient_accumulation_steps(?!\s*=\s*1\b)", module.text) is not None


def _token_mean(run: Run, event: Event, loop: Loop) -> str | None:
    """Return the function that makes the loss a mean over tokens, for the message; None where that is not sure."""
    for text in event.value.divided_by:
        if _TOKENS.search(text) and _is_of_batch(text, loop):
            return f"a loss divided by `{text}`"
    for call, module in _entropies(run, event, loop):
        if _ignores_padding(call, loop, module):
            return f"`{text_of(call.func)}` with `ignore_index`"
    # The `.loss` of a model of `transformers` whose targets differ in length.
    for made in run.of(Action.FORWARD, within=loop):
        if not event.value.comes_from(made.result) or not _reads_loss(loop) or made.call is None:
            continue
        libraries = [model.library or "" for model in model_origins(run, made.value)]
        if any(map(_WRITERS.search, libraries)):
            return f"the model's own loss of `{text_of(made.call.func)}`"
        if any(map(_CAUSAL.search, libraries)) and _PADDED.search(event.module.text):
            return f"the model's own loss of `{text_of(made.call.func)}`"
    return None


def _is_of_batch(text: str, loop: Loop) -> bool:
    """Return whether a loss's divisor is counted anew in each iteration, or in a helper that it calls."""
    names = set(re.findall(r"[A-Za-z_]\w*", text)) - {"sum", "float", "max", "clamp", "item", "ne"}
    return bool(names & stored_in(loop)) or not names & set(loop.values)


def _entropies(run: Run, event: Event, loop: Loop) -> Iterator[tuple[ast.Call, Module]]:
    """Calls that make the loss, with the arguments that settle how: of a function, or of a loss function's class."""
    for made in run.of(Action.CALL, within=loop):
        if made.name in _ENTROPIES and made.call is not None and event.value.comes_from(made.result):
            yield made.call, made.module
    criteria = dict(_criteria(event.module))
    for node in walk(loop.node):
        if isinstance(node, ast.Call) and text_of(node.func) in criteria:
            yield criteria[text_of(node.func)], event.module


def _criteria(module: Module) -> Iterator[tuple[str, ast.Call]]:
    """Loss functions that the file makes, by the name or dotted text that they are given."""
    for node in walk(module.tree):
        match node:
            case ast.Assign(targets=[target, *_], value=ast.Call() as made):
                if module.qualified(made.func) in _ENTROPY_CLASSES:
                    yield text_of(target), made


def _ignores_padding(call: ast.Call, loop: Loop, module: Module) -> bool:
    keywords = {keyword.arg: text_of(keyword.value) for keyword in call.keywords}
    ignored = keywords.get("ignore_index")
    if ignored is None or keywords.get("reduction", "'mean'") != "'mean'" or not _PADDING.search(ignored):
        return False
    lines = module.text.splitlines()[loop.node.lineno - 1 : loop.node.end_lineno]
    return ignored != "0" or _TEXT.search("\n".join(lines)) is not None


def _reads_loss(loop: Loop) -> bool:
    """Return whether the loop takes `.loss`, `["loss"]` or `[0]` of something."""
    return any(
        (isinstance(node, ast.Attribute) and node.attr == "loss")
        or (
            isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and node.slice.value in ("loss", 0)
        )
        for node in walk(loop.node)
    )


def _sides(node: ast.BinOp | ast.AugAssign) -> tuple[ast.expr, ...]:
    return (node.left, node.right) if isinstance(node, ast.BinOp) else (node.value,)


RULES: Final = read_rules(token_mean_accumulated)
