"""What a question is known by: every part of it, and all that is installed; nothing else."""

from __future__ import annotations

import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oomdoctor.check import cache as cache_key
from oomdoctor.check.cache import key_of
from oomdoctor.engines.installed import TorchBuild
from oomdoctor.request import PRECISIONS, LiteralOverride, ProbeRequest
from oomdoctor.results import Axis, Bucket, EnvironmentVariable, EvaluationBetween, Generation, SearchedSize, Variant
from oomdoctor.results.variant import LoneRank

HERE = Path(__file__).parent
VARIANTS = st.builds(
    Variant,
    precision=st.sampled_from(PRECISIONS),
    optimizer=st.none() | st.just("SGD"),
    environment=st.sampled_from([(), (EnvironmentVariable("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),)]),
    transformations=st.sampled_from([(), ("a",), ("b", "a")]),
    axes=st.sampled_from([(), (Axis("length", 512),), (Axis("length", 1024),)]),
    searched=st.none() | st.builds(SearchedSize, st.just("length"), st.integers(1, 2)),
    lone_rank=st.none() | st.builds(LoneRank, st.integers(0, 1), st.just(2), st.none() | st.just("dp=2")),
    buckets=st.sampled_from([(), (Bucket((Axis("length", 8),), 4),)]),
    devices=st.integers(1, 2),
    mode=st.sampled_from(["train", "eval"]),
    generation=st.none() | st.builds(Generation, st.just(8), st.integers(1, 2)),
    evaluation=st.none() | st.builds(EvaluationBetween, st.none() | st.integers(1, 2)),
)
REQUESTS = st.builds(
    ProbeRequest,
    target=st.sampled_from(["gpt2", "lstm", "gpt2:build_model()"]),
    directory=st.sampled_from([HERE, HERE.parent]),
    target_batch=st.integers(1, 3),
    world_size=st.integers(1, 2),
    variant=VARIANTS,
    headroom=st.sampled_from([0.0, 0.05]),
    gpu=st.none() | st.just("rtx-4090"),
    device=st.none() | st.just("0"),
    memory_bytes=st.none() | st.just(2**30),
    profiles=st.booleans(),
    reserve_bytes=st.sampled_from([0, 2**28]),
    card_bytes=st.none() | st.just(2**31),
    engine=st.sampled_from(["auto", "null"]),
    trial_timeout_seconds=st.sampled_from([60.0, 300.0]),
    profile_micro_batch=st.none() | st.integers(1, 2),
    command=st.none() | st.sampled_from([("python", "{micro_batch}"), ("python", "-u", "{micro_batch}")]),
    literals=st.lists(
        st.builds(LiteralOverride, st.just("t.py"), st.none() | st.just(3), st.sampled_from("ab"), st.just("1"))
    ).map(tuple),
    steps=st.integers(2, 3),
    count_steps=st.sampled_from(["optimizer", "backward"]),
    fresh=st.booleans(),
    inputs=st.lists(st.sampled_from(["uv.lock", "data/*.json"])).map(tuple),
    guide=st.booleans(),
    watched=st.booleans(),
    ranks=st.none() | st.just("first"),
    mesh=st.none() | st.just("dp=2"),
    parallel=st.none() | st.just("fsdp"),
    counts_cost=st.booleans(),
    fastest=st.booleans(),
)
ENVIRONMENTS = st.dictionaries(
    st.sampled_from(["PYTORCH_ALLOC_CONF", "TORCH_LOGS", "LD_PRELOAD", "PYTHONPATH"]), st.sampled_from(["", "a", "b"])
)


@given(REQUESTS, REQUESTS, ENVIRONMENTS, ENVIRONMENTS)
def test_a_key_is_that_of_one_question(
    one: ProbeRequest, other: ProbeRequest, environment: dict[str, str], changed: dict[str, str]
) -> None:
    """Two questions have one key only where they are the same in every field and setting."""
    is_same = one == other and environment == changed
    assert (key_of(one, environment) == key_of(other, changed)) is is_same


@pytest.mark.parametrize(
    ("asked", "has_gpu", "is_repeatable"),
    [
        ({"engine": "cuda"}, True, False),
        ({"engine": "null", "memory_bytes": 2**30}, True, True),
        ({"gpu": "rtx-4090"}, True, True),
        ({"device": "0"}, True, False),
        ({"device": "0"}, False, False),
        ({"memory_bytes": 2**30}, True, False),
        ({"memory_bytes": 2**30}, False, True),
    ],
)
def test_only_a_null_gpu_answers_alike_each_time(
    asked: dict[str, Any], has_gpu: bool, is_repeatable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What fits a real one depends on who else uses it."""
    monkeypatch.setattr(cache_key, "has_local_gpu", lambda _: has_gpu)
    assert cache_key.is_repeatable(ProbeRequest("gpt2", HERE, target_batch=1, **asked), {}) is is_repeatable


@given(REQUESTS, st.data())
def test_no_field_of_a_request_is_left_out(request_: ProbeRequest, data: st.DataObject) -> None:
    """A change of any one field makes another key."""
    name = data.draw(st.sampled_from([field.name for field in fields(ProbeRequest)]))
    other = replace(request_, **{name: getattr(data.draw(REQUESTS), name)})
    assert (key_of(request_, {}) == key_of(other, {})) is (request_ == other)


def test_every_field_of_a_request_is_drawn() -> None:
    """A field that is added later is in these tests too."""
    for strategy, kind in ((REQUESTS, ProbeRequest), (VARIANTS, Variant)):
        drawn = strategy.wrapped_strategy.kwargs if hasattr(strategy, "wrapped_strategy") else strategy.kwargs  # type: ignore[attr-defined]
        assert set(drawn) == {field.name for field in fields(kind)}


@given(st.dictionaries(st.sampled_from(["PWD", "CI", "GITHUB_SHA", "OOMDOCTOR_JOBS", "HOME"]), st.text(max_size=3)))
def test_other_variables_do_not_matter(environment: dict[str, str]) -> None:
    """What the target reads of them is recorded when it reads them."""
    request = ProbeRequest("gpt2", HERE, target_batch=1)
    assert key_of(request, environment) == key_of(request, {})


@pytest.mark.parametrize("name", ["own_code", "torch_files", "installed_packages"])
def test_what_is_installed_matters(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another oomdoctor, torch or package makes another question."""
    request = ProbeRequest("gpt2", HERE, target_batch=1)
    before = key_of(request, {})
    monkeypatch.setattr(cache_key, name, lambda: "another")
    assert key_of(request, {}) != before


def test_a_folder_by_another_way_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that runs in a subfolder names the project's folder `..`."""
    (tmp_path / "model.py").write_text("")
    (tmp_path / "src").mkdir()
    monkeypatch.chdir(tmp_path / "src")
    keys = {key_of(ProbeRequest("model.py", way, target_batch=1), {}) for way in (tmp_path, Path(".."))}
    assert len(keys) == 1


def test_a_declared_input_matters(tmp_path: Path) -> None:
    """A file that matches a pattern counts by its content, whoever reads it and wherever; its times do not."""
    (tmp_path / "data" / "deep").mkdir(parents=True)
    request = ProbeRequest("gpt2", tmp_path, target_batch=8, gpu="t4", inputs=("data/**/*.json",))
    keys = [key_of(request, {})]
    for text in ("1", "2", "1"):
        (tmp_path / "data" / "deep" / "width.json").write_text(text)
        keys.append(key_of(request, {}))
    (tmp_path / "data" / "width.yaml").write_text("3")
    assert keys[1] == keys[3] == key_of(request, {})
    assert len({*keys}) == 3


def test_a_file_that_takes_the_place_of_an_example_matters(tmp_path: Path) -> None:
    """The same text may name another target than before."""
    request = ProbeRequest("gpt2", tmp_path, target_batch=1)
    before = key_of(request, {})
    (tmp_path / "gpt2.py").write_text("")
    assert key_of(request, {}) != before


@pytest.fixture
def torch_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a torch looks like from outside."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libtorch_cuda.so").write_bytes(b"12345")
    (tmp_path / "version.py").write_text("__version__ = '2.15.0+cu132'\ngit_version = 'a'\n")
    monkeypatch.setattr(cache_key, "find_torch", lambda: TorchBuild("2.15.0+cu132", "13.2", tmp_path))
    return tmp_path


def test_another_build_of_torch_is_another(torch_root: Path) -> None:
    """Its version, its commit and its native libraries count; when it was installed does not."""
    before = cache_key.torch_files()
    (torch_root / "version.py").touch()
    assert cache_key.torch_files() == before
    (torch_root / "version.py").write_text("__version__ = '2.15.0+cu132'\ngit_version = 'b'\n")
    after = cache_key.torch_files()
    (torch_root / "lib" / "libtorch_cuda.so").write_bytes(b"123456")
    assert len({before, after, cache_key.torch_files()}) == 3


def test_other_packages_are_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that comes, goes or has another version, and what extends Python's path."""
    site = tmp_path / "site-packages"
    (site / "numpy-2.4.0.dist-info").mkdir(parents=True)
    (site / "project.pth").write_text("/one\n")
    monkeypatch.setattr(sys, "path", [str(site), str(tmp_path)])
    seen = {cache_key.installed_packages()}
    (site / "__pycache__").mkdir()
    (tmp_path / "unrelated.txt").write_text("")
    assert cache_key.installed_packages() in seen
    (site / "numpy-2.4.0.dist-info").rename(site / "numpy-2.4.1.dist-info")
    seen.add(cache_key.installed_packages())
    (site / "project.pth").write_text("/two\n")
    seen.add(cache_key.installed_packages())
    assert len(seen) == 3
    (site / "ray" / "thirdparty_files").mkdir(parents=True)
    seen.add(cache_key.installed_packages())
    sys.path.insert(0, str(site / "ray" / "thirdparty_files"))
    seen.add(cache_key.installed_packages())
    assert len(seen) == 4, "a package's own folder on the path counted"


def test_the_code_that_probes_is_part_of_the_question() -> None:
    """The null GPU's source, the catalogue and the examples are; what renders a report is not."""
    names = {str(path.relative_to(cache_key._PACKAGE)) for path in cache_key._own_files()}
    assert {"trial/trial.py", "engines/gpus.toml", "engines/null_gpu/source/memory.c", "examples/gpt2.py"} <= names
    assert {"results/probe.py", "codec.py", "oom/classifier.py", "target/importing.py"} <= names
    assert not any(name.startswith(("report/", "lint/", "cli/", "check/")) for name in names)
