"""What the target used is known of every worker of a probe, also of one that was replaced or lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from targets_for_tests import write_target

from oomdoctor.errors import TargetError
from oomdoctor.request import ProbeRequest
from oomdoctor.target.reference import parse_reference
from oomdoctor.trial.client import WorkerTrialSource

pytestmark = pytest.mark.null_gpu

CAPACITY = 2**30
LEAKING = """
def make_batch(batch_size):
    from pathlib import Path
    here = Path(__file__).parent
    if (here / "crash").exists():
        import os
        os.kill(os.getpid(), 9)
    if (here / "leak").exists():
        (here / "leak").read_text()
        vars(torch).setdefault("kept", []).append(torch.ones(2**20, device="cuda"))  # where it is not looked for
        (here / "leaked.txt").read_text()
    return torch.randn(batch_size, 1024)
"""


@pytest.fixture
def supervisor(tmp_path: Path, null_environment: Callable[[int], dict[str, str]]) -> Iterator[WorkerTrialSource]:
    """One whose target leaves memory behind or crashes where a file says so, loaded."""
    name = write_target(tmp_path, make_batch=LEAKING)
    request = ProbeRequest(name, tmp_path, target_batch=2, memory_bytes=CAPACITY, engine="null", watched=True)
    with WorkerTrialSource(request, parse_reference(name, directory=tmp_path), null_environment(CAPACITY)) as made:
        made.load()
        yield made


def test_what_a_replaced_worker_used_is_not_forgotten(supervisor: WorkerTrialSource, tmp_path: Path) -> None:
    """The file that only the first worker read is a dependency, and so is that its sign was there."""
    (tmp_path / "leaked.txt").write_text("read once")
    (tmp_path / "leak").touch()
    supervisor.run(1, micro_steps=1, allowed_bytes=CAPACITY)
    (tmp_path / "leak").unlink()
    supervisor.run(1, micro_steps=1, allowed_bytes=CAPACITY)
    used = supervisor.dependencies()
    assert supervisor.notes.replaced == 1
    assert f"content {tmp_path}/leaked.txt" in used.seen
    assert f"content {tmp_path}/model.py" in used.seen
    assert used.unseen == ()


def test_what_a_lost_worker_used_is_not_known(supervisor: WorkerTrialSource, tmp_path: Path) -> None:
    """An answer that it took part in is not to be kept."""
    supervisor.run(1, micro_steps=1, allowed_bytes=CAPACITY)
    assert supervisor.dependencies().unseen == ()
    (tmp_path / "crash").touch()
    assert supervisor.profile(1, micro_steps=1, allowed_bytes=CAPACITY).memory is None
    assert supervisor.dependencies().unseen


PLAIN = """
def build_model(width=1024):
    import os
    import sys
    assert {type(each).__name__ for each in (os.stat, os.lstat, os.access, os.getcwd)} == {"builtin_function_or_method"}
    assert os.environ.encodekey.__module__ == "os"
    assert not [each for each in sys.meta_path if type(each).__module__.startswith("oomdoctor")]
    assert "oomdoctor.agent.dependency_recorder" in sys.modules  # what would watch is there, and does not
    return nn.Linear(width, width)
"""


@pytest.mark.parametrize("watched", [False, True])
def test_a_plain_probe_watches_nothing(
    tmp_path: Path, null_environment: Callable[[int], dict[str, str]], *, watched: bool
) -> None:
    """No function, no import and no variable of the user's process is touched, unless a check asks."""
    name = write_target(tmp_path, build_model=PLAIN)
    request = ProbeRequest(name, tmp_path, target_batch=2, memory_bytes=CAPACITY, engine="null", watched=watched)
    with WorkerTrialSource(request, parse_reference(name, directory=tmp_path), null_environment(CAPACITY)) as made:
        with pytest.raises(TargetError) if watched else nullcontext():
            made.load()
        if not watched:
            assert made.dependencies().unseen == ("nobody watched what was used",)
