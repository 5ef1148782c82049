"""The issues of a table of cards: a note for each card, of which none fails anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oomdoctor.report.fit import sentences
from oomdoctor.report.issues import Case, Group, Issue, Issues, Location, Rule, repository_path, target_file
from oomdoctor.report.plain_text import sentence

if TYPE_CHECKING:
    from oomdoctor.results import FitDocument, FitResult, FittedCard

_TITLE: Final = "oomdoctor gpus --fit"
_DOES_NOT_FIT: Final = Rule(
    "card-too-small",
    "No micro-batch fits the card",
    "Train on a card with more memory, or lower the weights' share: a smaller model, bf16, or sharding.",
    "note",
)
_FITS: Final = Rule(
    "card-micro-batch",
    "The largest micro-batch that fits the card",
    "Set the micro-batch and the accumulation steps as the result says.",
    "note",
)


def issues(document: FitDocument) -> Issues:
    """Return a card's answer each, and a warning for each thing to know before relying on them."""
    result = document.result
    path = target_file(result.target)
    found = [_issue(result, card) for card in result.cards]
    warnings = [Issue("warning", _TITLE, (sentence(text),), Location(path)) for text in sentences.warnings(result)]
    rules = [rule for rule in (_DOES_NOT_FIT, _FITS) if any(issue.rule == rule.id for issue in found)]
    return Issues(
        headline=sentence(sentences.headline(result)),
        groups=[Group(result.target, [*found, *warnings], _properties(document))],
        rules=rules,
        properties={"cards": len(result.cards), "weights_bytes": result.weights_bytes},
    )


def _issue(result: FitResult, card: FittedCard) -> Issue:
    rule = _FITS if card.micro_batch.maximum else _DOES_NOT_FIT
    path, text = target_file(result.target), sentence(sentences.answer(card))
    return Issue(
        level=rule.level,
        title=f"{_TITLE} {result.target}",
        lines=(text, f"limited by {sentences.limit(card)}"),
        location=Location(path, name=result.target),
        subject=card.gpu,
        rule=rule.id,
        identity=("" if path is None else repository_path(path), result.target, card.gpu),
        case=Case(name=card.gpu, group=result.target, kind=card.micro_batch.limited_by, message=text, body=text),
    )


def _properties(document: FitDocument) -> dict[str, object]:
    result = document.result
    return {
        "status": document.status,
        "target_batch": result.target_batch,
        "world_size": result.world_size,
        "precision": result.precision,
        "engine": result.engine,
        **document.versions,
    }
