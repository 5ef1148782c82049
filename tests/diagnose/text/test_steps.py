"""Steps and memory in logs of many trainers, and what counts as growth."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomdoctor.diagnose.text.trend import TrendReader, read_memory, read_step
from oomdoctor.results import MemoryTrend
from oomdoctor.units import GIB, MIB


@pytest.mark.parametrize(
    ("line", "step", "used_bytes"),
    [
        ("step 120 | loss 2.1 | mem 10.5GB", 120, 21 * GIB // 2),
        ("iter: 300, max mem: 8123", 300, 8123 * MIB),
        ("Epoch 3 [120/500] loss 1.2 Mem 8123MB", 1620, 8123 * MIB),
        ("Epoch [3][120/500]  lr: 1e-3, eta: 1 day, time: 0.5, memory: 8123, loss: 1.2", 1620, 8123 * MIB),
        ("Train: 3 [ 120/500 ( 24%)]  Loss: 3.2", 1620, None),
        ("eta: 0:00:00  iter: 19  total_loss: 2.1  lr: 0.01  max_mem: 2034M", 19, 2034 * MIB),
        (" iteration      100/     500 | consumed samples: 800", 100, None),
        ("(after 100 iterations) memory (MB) | allocated: 1024.5 | max allocated: 2345.6", 100, 2049 * MIB // 2),
        ("      1/100      4.5G      1.234      2.3  16  640", 1, 9 * GIB // 2),
        ("memory_allocated 9.75 memory_cached 22.5", None, 39 * GIB // 4),
        ('{"step": 5, "memory_gb": 10.5}', 5, 21 * GIB // 2),
        ("{'loss': 1.2, 'grad_norm': 0.3, 'learning_rate': 3e-05, 'epoch': 0.5}", None, None),
        ("  9%|##   | 120/1000 [00:01<00:13,  1.33s/it]", 120, None),
        ("iter 300: loss 2.33, time 120.1ms, mfu 12.1%", 300, None),
        ("memory allocated: 12345678901", None, 12345678901),
        ("CPU mem 30 GB, GPU mem 12 GB", None, 12 * GIB),
        ("reserved 10.0GB allocated 9.0GB", None, 9 * GIB),
        ("memory: 85%", None, None),
        ("gb_free=21.5, num_updates=100", 100, None),
        ("1.33 step/s", None, None),
    ],
)
def test_the_forms_of_many_trainers_are_read(line: str, step: int | None, used_bytes: int | None) -> None:
    """A line tells its step and the memory of the device, in bytes."""
    reading = read_memory(line)
    assert (read_step(line), reading and reading.used_bytes) == (step, used_bytes)


@given(st.text(max_size=300))
def test_any_line_is_read(line: str) -> None:
    """No text breaks the reading, and what is read is a number that can be."""
    for text in (line, f"step {line} mem {line} GB", f"memory: {line}"):
        step, reading = read_step(text), read_memory(text)
        assert step is None or step >= 0
        assert reading is None or 0 < reading.used_bytes <= 1 << 50


def trend_of(megabytes: list[float], *, every: int = 10) -> MemoryTrend:
    """Read a log with these figures."""
    reader = TrendReader()
    for number, figure in enumerate(megabytes):
        reader.add(f"step {number * every} mem {figure:.2f} MiB")
    trend = reader.trend()
    assert trend is not None
    return trend


def test_a_leak_grows() -> None:
    """Memory that rises from step to step is growth, with how fast."""
    trend = trend_of([1000 + 25 * number for number in range(40)])
    assert trend.growing
    assert trend.bytes_per_step == pytest.approx(2.5 * MIB, rel=0.05)
    assert (trend.readings, trend.first_step, trend.last_step) == (40, 0, 390)
    assert (trend.first_bytes, trend.last_bytes) == (1000 * MIB, 1975 * MIB)


def test_a_leak_under_a_saw_tooth_and_noise_grows() -> None:
    """What each step gives back, and noise, do not hide a leak."""
    noise = random.Random(3)
    assert trend_of([4000 + 20 * number + 900 * (number % 5) + noise.uniform(0, 30) for number in range(200)]).growing


@pytest.mark.parametrize(
    "figures",
    [
        [1000, *[9000] * 60],
        [min(9000, 1000 + 800 * number) for number in range(100)],
        [4000 + 700 * (number % 6) for number in range(120)],
        [8000] * 50,
        [8000 if number < 60 else 9500 for number in range(120)],
        [9000 - 10 * number for number in range(100)],
        [4000 + (20 * number if number % 5 == 4 else 0) for number in range(200)],
        [1000, 2000],
    ],
    ids=["jump", "warm-up", "saw-tooth", "plateau", "one step up", "falling", "rising peaks", "two readings"],
)
def test_what_is_no_leak_does_not_grow(figures: list[float]) -> None:
    """Warm-up, plateaus, saw-teeth and a single step are no growth."""
    trend = trend_of(figures)
    assert not trend.growing
    assert trend.bytes_per_step == 0


@pytest.mark.parametrize("seed", range(20))
def test_noise_does_not_grow(seed: int) -> None:
    """Readings around one value are no growth."""
    noise = random.Random(seed)
    assert not trend_of([8000 + noise.uniform(-400, 400) for _ in range(150)]).growing


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(1, 10**6)), min_size=1, max_size=60))
def test_any_readings_are_judged(pairs: list[tuple[int, int]]) -> None:
    """Whatever the readings, the trend keeps its promises."""
    reader = TrendReader()
    for step, megabytes in pairs:
        reader.add(f"step {step} mem {megabytes} MiB")
    trend = reader.trend()
    assert trend is not None
    assert trend.readings == len(pairs)
    assert trend.growing == (trend.bytes_per_step > 0)
    assert trend.last_step >= trend.first_step


def test_many_readings_take_little_memory() -> None:
    """Readings are thinned, and the first and the last one stay."""
    reader = TrendReader()
    for number in range(10_000):
        reader.add(f"step {number} mem {1000 + number} MiB")
    (series,) = reader._series.values()
    assert len(series.points) <= 2048
    trend = reader.trend()
    assert trend is not None
    assert (trend.readings, trend.first_step, trend.last_step, trend.growing) == (10_000, 0, 9999, True)


def test_ranks_and_figures_are_series_of_their_own() -> None:
    """A process that needs more than another is not growth."""
    reader = TrendReader()
    for number in range(60):
        reader.add(f"step {number} mem {1000 + 4000 * (number % 2)} MiB", rank=number % 2)
    trend = reader.trend()
    assert trend is not None
    assert not trend.growing
    assert trend.readings == 30
