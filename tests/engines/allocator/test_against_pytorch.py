"""The simulator against PyTorch's own allocator on a null GPU, after every event of many traces."""

from __future__ import annotations

import sys

import pytest
from allocator_runs import build_of, each_python, run_traces

SETTINGS = (
    "expandable_segments:False",
    "expandable_segments:True",
    "expandable_segments:False,max_split_size_mb:64",
    "expandable_segments:True,max_split_size_mb:100",
    "expandable_segments:False,roundup_power2_divisions:[1:2,4:4,64:8,256:1,>:2]",
    "expandable_segments:True,roundup_power2_divisions:4,garbage_collection_threshold:0.5",
    "expandable_segments:False,garbage_collection_threshold:0.3",
    "expandable_segments:False,max_split_size_mb:21,roundup_power2_divisions:8",
    "expandable_segments:False,max_split_size_mb:200,max_non_split_rounding_mb:300,garbage_collection_threshold:0.6",
)
"""The rounding of torch 2.6 stays until another is named, so the one that has it comes last."""
NEWER_SETTINGS = (
    "expandable_segments:False,large_segment_size_mb:32,max_split_size_mb:40",
    "expandable_segments:True,large_segment_size_mb:12",
    "expandable_segments:False,large_segment_size_mb:20,throw_on_cudamalloc_oom:True",
)
"""Of keys that torch 2.6 does not have."""
OF_THE_PROCESS = (
    "per_process_memory_fraction:0.6,throw_on_cudamalloc_oom:True,max_split_size_mb:50",
    "per_process_memory_fraction:0.7,expandable_segments:True,garbage_collection_threshold:0.8",
)


def _has_newer_keys(python: str) -> bool:
    return not build_of(python).version.startswith("2.6.")


@pytest.mark.null_gpu
@pytest.mark.slow
@each_python
def test_random_traces(python: str) -> None:
    """In 1,000 random traces every count, address, layout and message is PyTorch's, and so is what it refuses."""
    settings = SETTINGS + (NEWER_SETTINGS if _has_newer_keys(python) else ())
    traces = -(-1000 // len(settings))

    found = run_traces("random_traces.py", "1", str(traces), "50", *settings, python=python)

    assert found["departures"] == []
    assert sum(done["traces"] for done in found["done"].values()) >= 1000
    for text, done in found["done"].items():
        assert done["events"] == 50 * traces
        assert done["ooms"] > traces // 2, text
        assert done["retries"] > traces // 2, text
        assert done["releases"] > traces // 2, text
    assert {text: ours for text, (_, ours) in found["judged"].items()} == {
        text: theirs for text, (theirs, _) in found["judged"].items()
    }


@pytest.mark.null_gpu
@pytest.mark.parametrize("settings", OF_THE_PROCESS)
def test_settings_that_a_process_begins_with(settings: str) -> None:
    """A memory fraction in the environment limits from the start, and refuses early where that is asked for."""
    found = run_traces("random_traces.py", "5", "25", "50", python=sys.executable, PYTORCH_CUDA_ALLOC_CONF=settings)

    assert found["departures"] == []
    assert (found["done"][""]["rejections"] > 0) == ("throw_on" in settings)


@pytest.mark.null_gpu
@pytest.mark.slow
@each_python
def test_traces_of_the_examples(python: str) -> None:
    """Training steps of every shipped example are placed as PyTorch places them, whether memory is ample or short."""
    found = run_traces("example_traces.py", *SETTINGS[:-1], python=python, gibibytes=32)

    assert found["departures"] == []
    assert set(found["done"]) == {"gpt2", "lstm", "resnet50", "unet", "vit_b16"}
    for done in found["done"].values():
        assert done["events"] > 100 * done["runs"]
        assert done["ooms"] > 0


@pytest.mark.null_gpu
@each_python
def test_random_histories(python: str) -> None:
    """What the allocator records of a random trace replays, and where that is not known, nothing is claimed."""
    found = run_traces("random_histories.py", "12", "80", *SETTINGS, python=python)

    assert found["departures"] == []
    for text, done in found["done"].items():
        assert done["histories"] >= (6 if "expandable_segments:True" in text else 11), text
        assert done["segments"] > 10 * done["histories"], text
