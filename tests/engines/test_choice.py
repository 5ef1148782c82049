"""Which engine answers, and why."""

from __future__ import annotations

import sys

import pytest

from oomdoctor.engines.catalogue import find_card
from oomdoctor.engines.choice import choose_engine
from oomdoctor.errors import NoAnswerError, UsageError
from oomdoctor.units import GIB

BASE = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(sys.prefix)}


def _choose(**options: object) -> object:
    arguments = {"engine": "auto", "gpu": None, "device": None, "memory_bytes": None, "base": BASE} | options
    return choose_engine(**arguments)


def _reasons(**options: object) -> dict[str, str]:
    return {reason.subject: reason.text for reason in _choose(**options).reasons}


@pytest.mark.null_gpu
def test_a_named_card_is_played_with_its_own_figures() -> None:
    """`--gpu` plays the card, and says where its memory and its context were had from."""
    engine = _choose(gpu="rtx-4090")
    reasons = _reasons(gpu="rtx-4090")

    assert (engine.kind, engine.card.name) == ("null", "NVIDIA GeForce RTX 4090")
    assert "rtx-4090" in reasons["engine"]
    assert engine.card.total_source in reasons["capacity"]
    assert engine.card.context_source in reasons["context"]


def test_memory_sets_the_capacity_exactly() -> None:
    """`--capacity` is what PyTorch may take, with or without a card."""
    assert _choose(memory_bytes=5 * GIB + 1).card.capacity_bytes == 5 * GIB + 1
    assert _choose(gpu="t4", memory_bytes=5 * GIB + 1).card.capacity_bytes == 5 * GIB + 1
    assert _choose(gpu="t4", memory_bytes=5 * GIB).card.compute_capability == (7, 5)


def test_the_memory_of_a_card_loses_its_context() -> None:
    """`--memory` is the card's in all, as for the cards of the catalogue, and a card of no model has a context too."""
    t4 = _choose(gpu="t4")
    smaller = _choose(gpu="t4", card_bytes=8 * GIB)
    assert smaller.card.capacity_bytes == 8 * GIB - t4.card.context_bytes
    generic = _choose(card_bytes=8 * GIB)
    assert 7 * GIB < generic.card.capacity_bytes < 8 * GIB
    reasons = {reason.subject: reason.text for reason in generic.reasons}
    assert "8.00 GiB in all (as `--memory` says), less the CUDA context" in reasons["capacity"]
    assert "a100" in reasons["context"]


def test_kernels_that_are_loaded_eagerly_are_of_the_context() -> None:
    """`CUDA_MODULE_LOADING=EAGER` lowers what a card leaves, says so, and changes no capacity that was given."""
    eager = BASE | {"CUDA_MODULE_LOADING": "EAGER"}
    options = {"engine": "trace", "gpu": "t4"}
    more = _choose(**options, base=eager).card.context_bytes - _choose(**options, base=BASE).card.context_bytes
    assert more == 2_156_724_224 - 804_061_184
    assert "1.26 GiB for all kernels" in _reasons(**options, base=eager)["context"]
    assert "all kernels" not in _reasons(**options, base=BASE | {"CUDA_MODULE_LOADING": "LAZY"})["context"]
    assert _choose(**options, base=eager, memory_bytes=5 * GIB).card.capacity_bytes == 5 * GIB


def test_a_card_without_room_for_its_context_is_refused() -> None:
    """Less memory than the context takes is no card, and the option that means the other is named."""
    with pytest.raises(UsageError, match="the CUDA context takes") as caught:
        _choose(card_bytes=100 << 20)
    assert "--capacity" in (caught.value.hint or "")


@pytest.mark.parametrize("option", ["card_bytes", "memory_bytes"])
def test_memory_that_a_named_card_never_has_is_refused(option: str) -> None:
    """A card with four times its memory may be one that was rebuilt; more is a mistake."""
    total = find_card("t4").total_bytes
    assert _choose(gpu="t4", **{option: 4 * total}).card.total_bytes >= 4 * total
    with pytest.raises(UsageError, match=r"a Tesla T4 has 14\.74 GiB, and 200\.00 GiB is asked about"):
        _choose(gpu="t4", **{option: 200 * GIB})


def test_without_a_gpu_and_without_a_card_there_is_no_answer() -> None:
    """No local GPU and no card to play is said, with an example of what to add."""
    with pytest.raises(NoAnswerError) as raised:
        _choose()
    assert "--gpu rtx-4090" in str(raised.value.hint)


@pytest.mark.parametrize(
    "options",
    [
        {"gpu": "t4", "device": "0"},
        {"gpu": "t4", "engine": "cuda"},
        {"device": "0", "engine": "null"},
        {"device": "0", "engine": "trace"},
        {"gpu": "t4", "engine": "trace", "may_trace": False},
    ],
)
def test_contradictions_are_refused(options: dict[str, str]) -> None:
    """Options that ask for a local GPU and for a played one are not both heeded in silence."""
    with pytest.raises(UsageError):
        _choose(**options)


def test_without_a_null_gpu_a_card_is_traced() -> None:
    """Where the null GPU cannot be had, `auto` traces and says why; who asked for a null GPU is told."""
    no_compiler = BASE | {"CC": "/nowhere/cc", "XDG_CACHE_HOME": "/nowhere/cache"}

    assert _choose(gpu="t4", base=no_compiler).kind == "trace"
    assert _reasons(gpu="t4", base=no_compiler)["engine"].startswith("trace: the null GPU")
    for options in ({"engine": "null"}, {"may_trace": False}):
        with pytest.raises(NoAnswerError, match="null GPU"):
            _choose(gpu="t4", base=no_compiler, **options)


@pytest.mark.parametrize(
    ("device", "visible", "expected"),
    [("1", None, "1"), ("1", "4,7", "7"), ("GPU-ab12", "4,7", "GPU-ab12"), ("0", " 3 , 5 ", "3")],
)
def test_a_device_is_counted_as_torch_counts(device: str, visible: str | None, expected: str) -> None:
    """An index goes into the devices that are visible now; a UUID stands for itself."""
    base = BASE if visible is None else BASE | {"CUDA_VISIBLE_DEVICES": visible}

    engine = _choose(engine="cuda", device=device, base=base)

    assert engine.environment["CUDA_VISIBLE_DEVICES"] == expected


def test_a_device_that_is_not_visible_is_refused() -> None:
    """An index beyond the visible devices says which there are."""
    with pytest.raises(UsageError, match="CUDA_VISIBLE_DEVICES=4,7"):
        _choose(engine="cuda", device="2", base=BASE | {"CUDA_VISIBLE_DEVICES": "4,7"})


def test_allocator_settings_are_named() -> None:
    """A setting of the allocator that the user has holds in the trials, and the result says so."""
    reasons = _reasons(gpu="t4", base=BASE | {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})

    assert "expandable_segments:True" in reasons["allocator"]
