"""What is advised, in which order, and what is not advised because it would be pointless."""

from __future__ import annotations

import pytest
from hypothesis import given
from situations import full, gib, situation, snapshot, trend
from test_causes import any_situation

from oomdoctor.diagnose import diagnose
from oomdoctor.diagnose.diagnose import find_causes
from oomdoctor.diagnose.evidence import Situation
from oomdoctor.diagnose.remedies import REMEDIES, choose_remedies
from oomdoctor.results import CauseId, Remedy, SourceLine, TrainingPhase


def remedies(one: Situation) -> dict[str, Remedy]:
    """Remedies by name, in their order."""
    return {remedy.id: remedy for remedy in choose_remedies(one, find_causes(one))}


def best(one: Situation) -> str:
    """The first remedy."""
    return next(iter(remedies(one)))


# --- what helps ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (situation(tried=0.15, total=31.7, free=0.01, allocated=24.9, unallocated=5.8), "expandable_segments"),
        (situation(tried=1, total=24, free=0.1, allocated=4, unallocated=0.1, others=((5, 19),)), "stop_other_process"),
        (situation(tried=5.6, total=11, free=10.9, allocated=0, unallocated=0, allowed=5.5), "raise_cap"),
        (full(phase=TrainingPhase.FORWARD), "smaller_micro_batch"),
        (full(phase=TrainingPhase.MODEL_TO_DEVICE), "lighter_weights"),
        (full(phase=TrainingPhase.OPTIMIZER_STEP, steps_done=0), "lighter_optimizer"),
        (full(phase=TrainingPhase.CHECKPOINT_LOAD), "load_on_host"),
        (full(phase=TrainingPhase.EVALUATION, step=5), "no_grad"),
        (full(trend=trend(first=2, last=22)), "drop_graph"),
        (situation(tried=90, total=15, free=9, allocated=1, unallocated=0), "check_shapes"),
        (situation(kind="host-shared-memory", device="cpu", text="Bus error"), "larger_shared_memory"),
        (situation(kind="host-allocator", device="cpu", text="can't allocate memory"), "fewer_workers"),
        (situation(kind="cuda-runtime", text="CUDA error: out of memory"), "no_pinned_memory"),
        (situation(kind="kv-cache"), "room_for_cache"),
        (situation(kind="int-max", is_oom=False, device="none"), "smaller_tensors"),
        (situation(kind="disk-full", is_oom=False, device="none"), "free_disk"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_first_remedy_is_for_the_first_cause(one: Situation, expected: str) -> None:
    """What comes first is what the cause asks for."""
    assert best(one) == expected


def test_every_cause_but_the_open_ones_has_a_remedy() -> None:
    """Only `unknown` has nothing to offer but what to collect."""
    assert set(CauseId) - set(REMEDIES) == {CauseId.UNKNOWN}


def test_frees_are_computed_from_the_facts() -> None:
    """Each figure is a number of the message or of the snapshot."""
    holes = situation(tried=0.15, total=31.7, free=0.01, allocated=24.9, unallocated=5.8)
    assert remedies(holes)["expandable_segments"].frees_bytes == gib(5.8)
    crowded = situation(tried=1, total=24, free=0.1, allocated=4, unallocated=0.1, others=((5, 19), (6, 0.5)))
    assert remedies(crowded)["stop_other_process"].frees_bytes == (gib(19) or 0) + (gib(0.5) or 0)
    seen = full(phase=TrainingPhase.FORWARD, snapshots=(snapshot(activations=16.0, weights=4.0),))
    assert remedies(seen)["smaller_micro_batch"].frees_bytes == gib(8)
    assert remedies(full(phase=TrainingPhase.FORWARD))["smaller_micro_batch"].frees_bytes is None


def test_what_is_known_to_free_too_little_comes_last() -> None:
    """A remedy that cannot cover the request is not put first."""
    held = snapshot(weights=2.0, optimizer_state=12.0, gradients=2.0)
    one = full(tried=6, phase=TrainingPhase.OPTIMIZER_STEP, snapshots=(held,))
    assert best(one) == "lighter_optimizer"
    assert list(remedies(one))[-1] == "no_foreach"


def test_process_ids_can_be_pasted() -> None:
    """The processes to look at are named in a command."""
    one = situation(tried=1, total=24, free=0.1, allocated=4, unallocated=0.1, others=((5, 12), (77, 7)))
    assert remedies(one)["stop_other_process"].how == "ps -fp 5,77  # then: kill 5 77"


@pytest.mark.parametrize(
    ("device", "kind", "words", "not_words"),
    [
        ("hip", "hip-allocator", ["HIP_VISIBLE_DEVICES", "rocm-smi"], ["CUDA_VISIBLE", "nvidia-smi"]),
        ("xpu", "xpu-allocator", ["ZE_AFFINITY_MASK", "xpu-smi"], ["CUDA_VISIBLE", "nvidia-smi"]),
        ("npu", "npu-allocator", ["ASCEND_RT_VISIBLE_DEVICES", "npu-smi"], ["CUDA_VISIBLE", "nvidia-smi"]),
    ],
)
def test_each_device_has_its_own_words(device: str, kind: str, words: list[str], not_words: list[str]) -> None:
    """Nobody is sent to a tool or a variable of another vendor."""
    one = situation(device=device, kind=kind, tried=1, total=24, free=0.1, allocated=4, unallocated=0.1)  # type: ignore[arg-type]
    said = " ".join(f"{remedy.change} {remedy.how}" for remedy in choose_remedies(one, find_causes(one)))
    assert all(word in said for word in words)
    assert not any(word in said for word in not_words)


def test_apple_gpus_get_their_own_words() -> None:
    """On MPS autocast and memory figures go by `mps`, and no probe is offered that cannot run there."""
    one = full(device="mps", kind="mps-allocator", total=None, free=None)
    said = " ".join(
        [f"{remedy.change} {remedy.how}" for remedy in choose_remedies(one, find_causes(one))]
        + [step.command for step in diagnose.next_steps(one, find_causes(one))]
    )
    assert 'autocast("mps"' in said
    assert "torch.mps.current_allocated_memory()" in said
    assert "torch.cuda" not in said
    assert "oomdoctor" not in said


def test_other_frameworks_are_not_told_to_write_pytorch() -> None:
    """PaddlePaddle's error gets what is true anywhere, without a line of PyTorch."""
    one = full(kind="paddle-allocator")
    assert remedies(one)
    assert not any("torch" in (remedy.how or "") for remedy in remedies(one).values())
    assert not list(diagnose.next_steps(one, find_causes(one)))


def test_servers_have_no_training_batch() -> None:
    """An inference server is told how to leave room, not how to accumulate gradients."""
    frames = (SourceLine("/opt/venv/lib/python3.12/site-packages/vllm/worker/model_runner.py", 5, "execute", None),)
    found = remedies(full(frames=frames))
    assert next(iter(found)) == "room_for_others"
    assert not {"smaller_micro_batch", "activation_checkpointing"} & set(found)


def test_windows_needs_a_larger_page_file() -> None:
    """Error 1455 of Windows is a paging file that is too small."""
    text = "OSError: [WinError 1455] The paging file is too small for this operation to complete"
    assert best(situation(kind="host-system", device="cpu", text=text)) == "larger_page_file"


def test_old_torch_gets_what_it_has() -> None:
    """Torch 2.0 and older have no expandable segments."""
    one = situation(
        tried=0.15, total=31.7, free=0.01, allocated=24.9, unallocated=5.8, text="(GPU 0; 31.7 GiB total capacity; ...)"
    )
    assert best(one) == "max_split_size"


# --- what would be pointless -----------------------------------------------------------------------------------------


def test_expandable_segments_need_holes() -> None:
    """20 MiB that are reserved in vain cannot be the 500 that are missing."""
    assert "expandable_segments" not in remedies(full(unallocated=0.02))


def test_expandable_segments_are_not_advised_twice() -> None:
    """Where they are on already, and it came to holes in spite of them, they are no remedy."""
    one = situation(
        tried=0.15,
        total=31.7,
        free=0.01,
        allocated=24.9,
        unallocated=5.8,
        allocator_settings="expandable_segments:True",
    )
    assert best(one) == "largest_batch_first"


def test_smaller_batch_needs_more_than_one_sample() -> None:
    """At batch size 1 there is nothing to halve; the sample itself is what is large."""
    one = full(phase=TrainingPhase.FORWARD, command=("train.py", "--batch-size", "1"))
    assert "smaller_micro_batch" not in remedies(one)
    assert "shorter_samples" in remedies(one)
    assert any("single sample" in note for note in diagnose.read_notes(one))


@pytest.mark.parametrize(
    "phase", [TrainingPhase.MODEL_TO_DEVICE, TrainingPhase.CHECKPOINT_LOAD, TrainingPhase.OPTIMIZER_STEP]
)
def test_smaller_batch_needs_a_batch(phase: TrainingPhase) -> None:
    """Where the weights alone do not fit, or the step holds no activations, the batch changes nothing."""
    assert "smaller_micro_batch" not in remedies(full(phase=phase))
    assert "activation_checkpointing" not in remedies(full(phase=phase))


@given(any_situation)
def test_never_pointless(one: Situation) -> None:
    """In no situation is something advised that its own numbers show to be useless."""
    found = remedies(one)
    assert len(found) <= 8
    assert not any("empty_cache" in f"{remedy.change} {remedy.how}" for remedy in found.values())
    tried, holes = one.facts.tried_bytes, one.facts.reserved_unallocated_bytes
    if "expandable_segments" in found:
        assert tried is not None
        assert holes is not None
        assert holes + (one.facts.free_bytes or 0) >= tried
    if "smaller_micro_batch" in found:
        assert one.batch_size != 1
        assert one.on_gpu
    assert all(remedy.frees_bytes is None or remedy.frees_bytes >= 0 for remedy in found.values())


# --- notes and next steps --------------------------------------------------------------------------------------------


def test_segment_is_explained() -> None:
    """20 MiB is what PyTorch takes from the driver, not what the program asked for."""
    notes = list(diagnose.read_notes(full(tried=20 / 1024)))
    assert len(notes) == 1
    assert "1 to 10 MiB" in notes[0]
    assert not list(diagnose.read_notes(full(tried=22 / 1024)))


def test_open_answers_say_what_to_collect() -> None:
    """Where no cause is more than possible, there is a command that would tell."""
    open_question = full()
    commands = [step.command for step in diagnose.next_steps(open_question, find_causes(open_question))]
    assert "oomdoctor run -- python train.py" in commands
    answered = full(phase=TrainingPhase.FORWARD)
    assert not list(diagnose.next_steps(answered, find_causes(answered)))


def test_number_less_message_asks_for_the_card() -> None:
    """Without numbers the card itself has to be asked who holds it."""
    one = situation(kind="cudnn-no-engine", text="Unable to find a valid cuDNN algorithm")
    assert "nvidia-smi" in [step.command for step in diagnose.next_steps(one, find_causes(one))]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("python train.py --batch-size 64", 64),
        ("--per_device_train_batch_size=8", 8),
        ('{"batch_size": 4, "lr": 1e-3}', 4),
        ("batch_size=16, eval_batch_size=64", 16),
        ("bs=32", 32),
        ("batch_size=8 batch_size=9", None),
        ("minibatch_sizes 3", None),
        ("batch size unknown", None),
    ],
)
def test_batch_size_is_read_where_it_is_plain(text: str, size: int | None) -> None:
    """A batch size is taken from the command line or the log, and not where two are named."""
    assert full(command=(text,)).batch_size == size
    assert full(lines=(text,)).batch_size == size


# --- what is known is used -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "probe"),
    [
        (("python", "train.py", "--batch-size", "16"), "-- python train.py --batch-size {micro_batch}"),
        (("python", "-m", "trainer", "--data.batch_size=8"), "-- python -m trainer --data.batch_size={micro_batch}"),
        (("torchrun", "train.py", "per_device_train_batch_size=4"), "per_device_train_batch_size={micro_batch}"),
        (("python", "train.py"), "-- python train.py  # {micro_batch} goes where the script takes its batch size"),
        (("python", "train.py", "225"), "train.py 225  # {micro_batch} goes where the script takes its batch size"),
        ((), "oomdoctor probe model.py --target-batch"),
    ],
)
def test_advice_names_the_command_that_ran(command: tuple[str, ...], probe: str) -> None:
    """After a run the command itself is probed, with its batch size left open, and no file that may lie there."""
    one = full(phase=TrainingPhase.FORWARD, command=command)
    how = remedies(one)["smaller_micro_batch"].how or ""
    assert probe in how
    assert ("model.py" in how) == (not command)
    steps = [step.command for step in diagnose.next_steps(situation(command=command), ())]
    assert f"oomdoctor run -- {' '.join(command) or 'python train.py'}" in steps


def test_advice_asks_of_the_card_that_the_run_was_asked_to_show() -> None:
    """The options that chose the card are in each proposed command, which asks of the command that ran where it can."""
    command = ("python", "gan.py", "--batch-size", "64")
    card = ("--gpu", "t4", "--capacity", "1GiB")
    one = full(phase=TrainingPhase.FORWARD, command=command, card_options=card, device_names=("Tesla T4",))
    left_open = "-- python gan.py --batch-size {micro_batch}"
    advised = remedies(one)
    probe = f"oomdoctor probe --target-batch 64 --gpu t4 --capacity 1GiB {left_open}"
    assert advised["smaller_micro_batch"].how == probe
    prescribe = f"oomdoctor prescribe --gpu t4 --capacity 1GiB --need 64 {left_open}"
    assert advised["measured_remedies"].how == prescribe
    assert "have the code printed" in advised["measured_remedies"].change
    steps = [step.command for step in diagnose.next_steps(situation(command=command, card_options=card), ())]
    assert "oomdoctor run --gpu t4 --capacity 1GiB -- python gan.py --batch-size 64" in steps


def test_advice_keeps_the_ranks_of_the_run() -> None:
    """The world is in each proposed command, with the rank where it takes one; a target batch is that of all ranks."""
    command = ("torchrun", "train.py", "--batch-size", "4")
    asked = ("--gpu", "t4", "--world-size", "8", "--rank", "0,7")
    one = full(phase=TrainingPhase.FORWARD, command=command, card_options=asked)
    left_open = "-- torchrun train.py --batch-size {micro_batch}"
    advised = remedies(one)
    probe = f"oomdoctor probe --target-batch 32 --gpu t4 --world-size 8 --rank 0,7 {left_open}"
    assert advised["smaller_micro_batch"].how == probe
    prescribe = f"oomdoctor prescribe --gpu t4 --world-size 8 --need 4 {left_open}"
    assert advised["measured_remedies"].how == prescribe
    steps = [step.command for step in diagnose.next_steps(situation(command=command, card_options=asked), ())]
    assert "oomdoctor run --gpu t4 --world-size 8 --rank 0,7 -- torchrun train.py --batch-size 4" in steps


def test_advice_adds_the_card_to_a_reserve() -> None:
    """A reserve alone names no card, so that the one that was seen stands beside it."""
    one = full(phase=TrainingPhase.FORWARD, card_options=("--reserve", "1GiB"), device_names=("Tesla T4",))
    assert remedies(one)["measured_remedies"].how == "oomdoctor prescribe model.py --gpu t4 --reserve 1GiB"


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "oomdoctor prescribe model.py --memory 24.00GiB --need 64"),
        ({"device_names": ("NVIDIA GeForce RTX 4090",)}, "oomdoctor prescribe model.py --gpu rtx-4090 --need 64"),
        ({"device_names": ("Some Future Card",)}, "oomdoctor prescribe model.py --memory 24.00GiB --need 64"),
    ],
)
def test_prescribe_is_named_with_the_card_and_the_batch(changes: dict[str, object], line: str) -> None:
    """The card by its name where the run's report tells it and the catalogue knows it, else by its memory."""
    one = full(phase=TrainingPhase.FORWARD, lines=("batch_size=64",), **changes)
    assert remedies(one)["measured_remedies"].how == line
    evaluating = full(phase=TrainingPhase.EVALUATION, lines=("batch_size=64",), **changes)
    assert "measured_remedies" not in remedies(evaluating)


def test_a_leak_that_was_seen_is_all_that_is_treated() -> None:
    """Where memory grows from step to step, nothing that only puts the end off is listed."""
    one = full(phase=TrainingPhase.FORWARD, step=900, trend=trend(first=2, last=22))
    assert list(remedies(one)) == ["drop_graph"]


def test_a_failed_temporary_of_foreach_is_not_made() -> None:
    """A temporary as large as all weights is avoided by the fused kernel, before the state gets lighter."""
    frame = SourceLine(
        "/v/site-packages/torch/optim/adamw.py", 606, "_multi_tensor_adamw", "torch._foreach_sqrt(squares)"
    )
    failed = full(phase=TrainingPhase.OPTIMIZER_STEP, step=9, frames=(frame,))
    assert list(remedies(failed))[:2] == ["no_foreach", "lighter_optimizer"]
    made = SourceLine("/v/site-packages/torch/optim/adamw.py", 50, "_init_group", "torch.zeros_like(p)")
    assert best(full(phase=TrainingPhase.OPTIMIZER_STEP, step=9, frames=(made,))) == "lighter_optimizer"


@pytest.mark.parametrize(
    ("name", "has_bfloat16"),
    [
        ("Tesla T4", False),
        ("Tesla V100-SXM2-16GB", False),
        ("NVIDIA GeForce RTX 2080 Ti", False),
        ("NVIDIA GeForce GTX 1080 Ti", False),
        ("Quadro RTX 6000", False),
        ("NVIDIA A100-SXM4-40GB", True),
        ("NVIDIA RTX 6000 Ada Generation", True),
        ("NVIDIA GeForce RTX 4090", True),
        ("NVIDIA H100 80GB HBM3", True),
    ],
)
def test_bfloat16_is_for_cards_that_have_it(name: str, has_bfloat16: bool) -> None:
    """Cards below compute capability 8.0 are advised to use float16 with a scaler."""
    found = remedies(full(phase=TrainingPhase.FORWARD, device_names=(name,)))
    assert ("bf16_autocast" in found, "fp16_autocast" in found) == (has_bfloat16, not has_bfloat16)


def test_room_that_was_refused_under_a_limit_of_addresses_is_the_hosts() -> None:
    """Free memory of the device and a limited address space are the host's matter, and are told from a full card."""
    one = situation(tried=2, total=24, free=20, allocated=3, unallocated=0, address_space_bytes=16 << 30)
    assert find_causes(one)[0].id is CauseId.HOST_OOM
    assert best(one) == "address_space"
    assert remedies(one)["address_space"].how == "ulimit -v unlimited"
