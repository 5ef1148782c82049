"""Histories made by hand: what each event does to the sums, the timeline, the growth and the comparison."""

# ruff: noqa: D102, D103
from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from oomdoctor.diagnose.snapshot.composition import compare
from oomdoctor.diagnose.snapshot.reading import read_snapshot
from oomdoctor.diagnose.snapshot.summary import summarise
from oomdoctor.results import (
    Category,
    CategoryBytes,
    Composition,
    MemoryLine,
    SnapshotSummary,
    SourceLine,
    TrainingPhase,
)
from oomdoctor.units import MIB

TORCH = "/usr/lib/python3/site-packages/torch"


def frames(*lines: tuple[str, str, int]) -> list[dict[str, Any]]:
    """Frames as (path, function, line), outermost first."""
    return [{"filename": path, "name": name, "line": line} for path, name, line in reversed(lines)]


MAIN = ("/home/me/train.py", "<module>", 90)
CALL = (f"{TORCH}/nn/modules/module.py", "_call_impl", 1)


def step(line: int, *inner: tuple[str, str, int]) -> list[dict[str, Any]]:
    return frames(MAIN, ("/home/me/train.py", "train", line), *inner)


class Tape:
    """Writes a history, with every block in a segment of its own."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.segments: dict[int, dict[str, Any]] = {}
        self.next = 1 << 30

    def event(self, action: str, address: int, size: int, stack: list[dict[str, Any]]) -> None:
        self.events.append(
            {"action": action, "addr": address, "size": size, "frames": stack, "time_us": 1000 + len(self.events)}
        )

    def alloc(self, size: int, stack: list[dict[str, Any]]) -> int:
        address, self.next = self.next, self.next + 2 * size + MIB
        part = {"address": address, "size": size, "requested_size": size, "state": "active_allocated", "frames": stack}
        self.segments[address] = {"device": 0, "address": address, "total_size": size, "blocks": [part]}
        self.event("segment_alloc", address, size, stack)
        self.event("alloc", address, size, stack)
        return address

    def free(self, address: int, stack: list[dict[str, Any]] | None = None) -> None:
        segment = self.segments.pop(address)
        for action in ("free_requested", "free_completed", "segment_free"):
            self.event(action, address, segment["total_size"], stack or [])

    def oom(self, size: int, free: int, stack: list[dict[str, Any]]) -> None:
        self.events.append({"action": "oom", "device_free": free, "size": size, "frames": stack})

    def summary(self, addresses: dict[int, Category] | None = None) -> SnapshotSummary:
        data = {"segments": list(self.segments.values()), "device_traces": [self.events]}
        content = pickle.dumps(data)
        assert read_snapshot(json.dumps(data).encode(), "tape") == read_snapshot(content, "tape")
        return summarise(read_snapshot(content, "tape"), addresses)[0]


def sizes(composition: Composition) -> dict[Category, int]:
    return {part.category: part.allocated_bytes for part in composition.categories}


def train(tape: Tape, steps: int, *, leaks: bool, warm_up: bool = True) -> None:
    """Steps of a loop: a batch at line 10, a layer's output at 11, a temporary of the optimizer at 13."""
    kept = [tape.alloc(3 * MIB, step(5, (f"{TORCH}/nn/modules/module.py", "_apply", 1)))]
    for number in range(steps):
        batch = tape.alloc(MIB, step(10))
        outputs = [tape.alloc(2 * MIB, step(11, CALL, ("/home/me/model.py", "forward", 7))) for _ in range(3)]
        gradient = tape.alloc(3 * MIB, [])
        if number == 0 and warm_up:
            tape.alloc(6 * MIB, step(13, (f"{TORCH}/optim/adam.py", "_init_group", 180)))
        temporary = tape.alloc(MIB, step(13, (f"{TORCH}/optim/adam.py", "_multi_tensor_adam", 500)))
        for address in (*outputs[leaks:], temporary, gradient, batch):
            tape.free(address, step(14))
    assert kept


def test_a_clean_loop_does_not_grow() -> None:
    """Weights, optimizer state and what comes and goes with each step are no growth, wherever it ends."""
    for steps in range(1, 9):
        tape = Tape()
        train(tape, steps, leaks=False)
        assert tape.summary().growing == ()


@pytest.mark.parametrize("warm_up", [True, False])
def test_what_a_loop_keeps_grows(*, warm_up: bool) -> None:
    """One output kept a step is found with its line, its first and its last bytes and blocks."""
    tape = Tape()
    train(tape, 6, leaks=True, warm_up=warm_up)
    (line,) = tape.summary().growing
    assert line.place == SourceLine("/home/me/model.py", 7, "forward")
    assert (line.first_bytes, line.last_bytes) == (2 * MIB, 12 * MIB)
    assert (line.first_blocks, line.last_blocks, line.category) == (1, 6, Category.ACTIVATIONS)


def test_layers_of_one_forward_pass_are_no_steps() -> None:
    """A loop over layers keeps more with every layer, and is left alone as long as no loop of the program turns."""
    tape = Tape()
    for _ in range(12):
        for line in (3, 4, 5):
            tape.alloc(MIB, step(11, CALL, ("/home/me/model.py", "forward", line)))
    assert tape.summary().growing == ()


def test_growth_that_ended_long_ago_is_none() -> None:
    """A cache that was filled before training is not why memory ran out in it."""
    tape = Tape()
    for _ in range(6):
        tape.alloc(MIB, step(2))
        tape.alloc(MIB, step(3))
    train(tape, 12, leaks=False)
    assert tape.summary().growing == ()


def test_small_numbers_that_are_kept_are_no_leak() -> None:
    """Losses that are kept for a plot take half a kilobyte a step."""
    tape = Tape()
    train(tape, 2, leaks=False)
    for _ in range(6):
        tape.alloc(512, step(12))
        tape.free(tape.alloc(MIB, step(10)))
    assert tape.summary().growing == ()


def test_the_categories_of_a_step() -> None:
    """Each block of a step is what its stack and its lifetime say."""
    tape = Tape()
    train(tape, 1, leaks=False)
    assert sizes(tape.summary().peak) == {
        Category.ACTIVATIONS: 6 * MIB,
        Category.OPTIMIZER_STATE: 6 * MIB,
        Category.WEIGHTS: 3 * MIB,
        Category.GRADIENTS: 3 * MIB,
        Category.INPUT: MIB,
        Category.WORKSPACE: MIB,
    }
    assert sizes(tape.summary().end) == {Category.OPTIMIZER_STATE: 6 * MIB, Category.WEIGHTS: 3 * MIB}


def test_a_gradient_that_nothing_follows_is_told_by_who_freed_it() -> None:
    """The engine's thread frees what is its own; what the program's thread frees outlived backward."""
    tape = Tape()
    tape.alloc(MIB, step(13, (f"{TORCH}/optim/sgd.py", "_init_group", 5)))
    gradient, passing = tape.alloc(3 * MIB, []), tape.alloc(2 * MIB, [])
    tape.free(passing)
    tape.free(gradient, step(14))
    tape.alloc(MIB, [])
    peak = sizes(tape.summary().peak)
    assert (peak[Category.GRADIENTS], peak[Category.WORKSPACE]) == (3 * MIB, 2 * MIB)


def test_python_that_the_engine_calls_is_backward() -> None:
    """A backward function of the user's own runs on the engine's thread: what it frees in time is workspace."""
    tape = Tape()
    custom = frames((f"{TORCH}/autograd/function.py", "apply", 300), ("/home/me/ops.py", "backward", 5))
    tape.free(tape.alloc(2 * MIB, custom))
    kept = tape.alloc(3 * MIB, custom)
    tape.alloc(MIB, step(13, (f"{TORCH}/optim/sgd.py", "step", 5)))
    tape.free(kept, step(14))
    summary = tape.summary()
    assert sizes(summary.peak) == {Category.GRADIENTS: 3 * MIB, Category.OPTIMIZER_STATE: MIB}
    order = list(Category)
    assert summary.timeline[1].categories[order.index(Category.WORKSPACE)] == 2 * MIB


def test_a_folder_of_the_name_torch_may_be_the_users() -> None:
    """A program under `/home/me/torch/` is no part of PyTorch, and what it allocates before a forward pass is input."""
    tape = Tape()
    main = ("/home/me/torch/train.py", "<module>", 9)
    for _ in range(4):
        tape.alloc(MIB, frames(main, ("/home/me/torch/train.py", "train", 3)))
        tape.alloc(2 * MIB, frames(main, ("/home/me/torch/train.py", "train", 4), CALL))
    summary = tape.summary()
    assert sizes(summary.end) == {Category.ACTIVATIONS: 8 * MIB, Category.INPUT: 4 * MIB}
    assert [line.place.line for line in summary.growing if line.place] == [4, 3]


def test_workspace_of_a_forward_pass() -> None:
    """What the call that allocated it frees before anything else is allocated, and what cuBLAS keeps."""
    tape = Tape()
    linear = step(11, CALL, ("/home/me/model.py", "forward", 7))
    tape.alloc(8_519_680, linear)
    tape.alloc(MIB, linear)
    tape.free(tape.alloc(2 * MIB, linear))
    assert sizes(tape.summary().peak) == {Category.WORKSPACE: 2 * MIB + 8_519_680, Category.ACTIVATIONS: MIB}


def test_the_latest_few_of_many_are_no_leak() -> None:
    """A program that holds its last three outputs, and has let go of those before, does not grow."""
    tape = Tape()
    held: list[int] = []
    for _ in range(12):
        tape.free(tape.alloc(MIB, step(10)), step(10))
        held.append(tape.alloc(4 * MIB, step(11, CALL, ("/home/me/model.py", "forward", 7))))
        if len(held) > 3:
            tape.free(held.pop(0), step(12))
    assert tape.summary().growing == ()


def test_known_addresses_decide() -> None:
    """What our own hook saw at an address stands above what the stack suggests."""
    tape = Tape()
    address = tape.alloc(MIB, step(11, CALL, ("/home/me/model.py", "forward", 7)))
    tape.alloc(2 * MIB, step(11, CALL, ("/home/me/model.py", "forward", 8)))
    found = tape.summary({address: Category.WEIGHTS, 12345: Category.GRADIENTS})
    assert sizes(found.end) == {Category.ACTIVATIONS: 2 * MIB, Category.WEIGHTS: MIB}
    assert sizes(found.peak) == sizes(found.end)


def test_the_moment_when_memory_ran_out_is_the_end() -> None:
    """What was freed after the error is in the end; a program that went on is described as it was found."""
    tape = Tape()
    forward = step(11, CALL, ("/home/me/model.py", "forward", 7))
    held = [tape.alloc(4 * MIB, forward) for _ in range(4)]
    tape.oom(8 * MIB, 3, forward)
    for address in held:
        tape.free(address)
    dead = tape.summary()
    assert (dead.end.allocated_bytes, dead.end.reserved_bytes) == (16 * MIB, 16 * MIB)
    assert (dead.tried_bytes, dead.free_bytes, dead.phase) == (8 * MIB, 3, TrainingPhase.FORWARD)
    assert dead.user_line == SourceLine("/home/me/model.py", 7, "forward")
    assert [(block.size_bytes, block.blocks) for block in dead.largest] == [(4 * MIB, 4)]
    assert dead.fragmentation.segments == 4
    tape.alloc(2 * MIB, forward)
    alive = tape.summary()
    assert (alive.end.allocated_bytes, alive.tried_bytes, alive.phase) == (2 * MIB, None, None)


def test_a_long_history_is_thinned_and_keeps_its_peak() -> None:
    """At most 400 points, in order, with the first, the peak and the last event; times count from the first."""
    tape = Tape()
    stack = step(10)
    for number in range(2_000):
        address = tape.alloc(MIB * (9 if number == 777 else 1), stack)
        tape.free(address)
    summary = tape.summary()
    points = summary.timeline
    assert 390 < len(points) <= 400
    assert [point.event for point in points] == sorted({point.event for point in points})
    assert (points[0].event, points[-1].event) == (0, summary.events - 1)
    assert max(sum(point.categories) for point in points) == summary.peak.allocated_bytes == 9 * MIB
    assert all(point.microseconds == point.event for point in points)
    assert all(len(point.categories) == len(Category) for point in points)


def test_a_block_takes_a_rest_that_is_not_split_off() -> None:
    """A request that leaves less than 1 MiB of a segment gets all of it, and is counted so after it is gone."""
    stack = step(10)
    events = [
        {"action": "segment_alloc", "addr": 0, "size": 20 * MIB, "frames": stack},
        {"action": "alloc", "addr": 0, "size": 5 * MIB, "frames": stack},
        {"action": "alloc", "addr": 5 * MIB, "size": 15 * MIB - 5000, "frames": stack},
        {"action": "free_requested", "addr": 5 * MIB, "size": 15 * MIB - 5000, "frames": stack},
        {"action": "free_completed", "addr": 5 * MIB, "size": 15 * MIB - 5000, "frames": stack},
        {"action": "alloc", "addr": 5 * MIB, "size": 14 * MIB - 512, "frames": stack},
        {"action": "free_requested", "addr": 5 * MIB, "size": 14 * MIB - 512, "frames": stack},
        {"action": "free_completed", "addr": 5 * MIB, "size": 14 * MIB - 512, "frames": stack},
    ]
    parts = [
        {"address": 0, "size": 5 * MIB, "state": "active_allocated", "frames": stack},
        {"address": 5 * MIB, "size": 15 * MIB, "state": "inactive", "frames": []},
    ]
    segment = {"device": 0, "address": 0, "total_size": 20 * MIB, "blocks": parts}
    data = {"segments": [segment], "device_traces": [events]}
    (summary,) = summarise(read_snapshot(pickle.dumps(data), "x"))
    allocated = [sum(point.categories) for point in summary.timeline]
    assert allocated == [0, 5 * MIB, 20 * MIB, 5 * MIB, 5 * MIB, 19 * MIB - 512, 5 * MIB, 5 * MIB]


def summary_of(*lines: tuple[int, int]) -> SnapshotSummary:
    """A summary whose peak has lines of these (number, bytes)."""
    named = [MemoryLine(SourceLine("a.py", line), Category.OTHER, size, 1) for line, size in lines]
    total = sum(size for _, size in lines)
    peak = Composition(total, total, (CategoryBytes(Category.OTHER, total),), tuple(named))
    tape = Tape()
    tape.alloc(MIB, [])
    whole = tape.summary()
    return SnapshotSummary(
        **{name: getattr(whole, name) for name in whole.__dataclass_fields__ if name != "peak"}, peak=peak
    )


def test_differences_are_listed_by_size() -> None:
    """Lines that are the same are left out, and a line that is missing holds nothing."""
    both = compare(summary_of((1, 50), (2, 30), (3, 10)), summary_of((1, 60), (2, 30), (4, 35)))
    assert [(line.place.line, line.before_bytes, line.after_bytes) for line in both.lines if line.place] == [
        (4, 0, 35),
        (1, 50, 60),
        (3, 10, 0),
    ]


def test_a_line_that_may_only_be_unnamed_is_left_out() -> None:
    """Beyond the twenty lines that a summary names there may be more; only what is larger than those surely differs."""
    full = [(line, 1000 - line) for line in range(20)]
    part = [*full[:15], (100, 982), (101, 980)]
    there, back = compare(summary_of(*full), summary_of(*part)), compare(summary_of(*part), summary_of(*full))
    assert {line.place.line for line in there.lines if line.place} == {15, 16, 17, 18, 19, 100}
    assert {(line.place, line.after_bytes, line.before_bytes) for line in back.lines} == {
        (line.place, line.before_bytes, line.after_bytes) for line in there.lines
    }
