"""Histories of real training held to the allocator's rules, and histories that no allocator can have written."""

from __future__ import annotations

from dataclasses import replace

import pytest
from snapshot_scenarios import Load

from oomdoctor.diagnose.snapshot.layout import AllocatorAction
from oomdoctor.diagnose.snapshot.summary import replay_by_rules
from oomdoctor.units import MIB

WHOLE = (
    "clean",
    "dies_in_forward",
    "dies_in_backward",
    "dies_in_optimizer",
    "fragmentation",
    "recovered",
    "clean_without_adam@alloc",
    "leak_of_outputs@expandable",
    "dies_in_backward@expandable",
    "resnet_in_forward",
)
CUT = ("ring_buffer", "leak_in_a_ring_buffer", "recorded_late")


@pytest.mark.null_gpu
@pytest.mark.parametrize("name", [*WHOLE, *CUT])
def test_a_real_history_replays(scenario: Load, name: str) -> None:
    """Each block lies where the rules put it, and each segment comes and goes when they say, whatever was cut off."""
    replayed = scenario(name).summary.replay
    assert replayed is not None
    assert (replayed.departed_at, replayed.departure) == (None, None)
    assert replayed.events > 30
    assert replayed.segment_events > 0 or name in CUT


@pytest.mark.null_gpu
def test_no_history_is_no_replay(scenario: Load) -> None:
    """A snapshot without a history says nothing of rules."""
    assert scenario("without_history").summary.replay is None


@pytest.mark.null_gpu
def test_an_impossible_history_departs(scenario: Load) -> None:
    """A block of another size than was recorded is noticed where it is, and said in one sentence."""
    raw = scenario("clean").raw
    (device,) = raw.devices
    alike = [at for at, event in enumerate(device.events) if event.action is AllocatorAction.ALLOC]
    at = alike[len(alike) // 2]
    changed = device.events[at]._replace(size=device.events[at].size + 64 * MIB)
    events = (*device.events[:at], changed, *device.events[at + 1 :])
    found = replay_by_rules(replace(device, events=events), raw.allocator_settings)
    assert found is not None
    assert found.departure is not None
    assert found.departure.event == at
    assert found.departure.text.startswith("by the allocator's rules ")
    assert "and the history has `alloc` of " in found.departure.text


@pytest.mark.null_gpu
def test_other_settings_make_another_history(scenario: Load) -> None:
    """Rounding that was not in force explains nothing."""
    raw = scenario("clean").raw
    settings = {**raw.allocator_settings, "PYTORCH_CUDA_ALLOC_CONF": "roundup_power2_divisions:2"}
    found = replay_by_rules(raw.devices[0], settings)
    assert found is not None
    assert found.departure is not None


@pytest.mark.null_gpu
def test_private_pools_are_left_alone(scenario: Load) -> None:
    """Blocks of CUDA graphs follow other rules, and what PyTorch refuses cannot have been its settings."""
    raw = scenario("clean").raw
    (device,) = raw.devices
    private = replace(device, segments=(replace(device.segments[0], private=True), *device.segments[1:]))
    assert replay_by_rules(private, raw.allocator_settings) is None
    assert replay_by_rules(device, {**raw.allocator_settings, "PYTORCH_CUDA_ALLOC_CONF": "no_such_key:1"}) is None
