"""`oomdoctor prescribe --write`: the patched file is there afterwards, or it is said why not."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from running import Run, run_here

from oomdoctor.remedies.catalogue import REMEDIES

BLOCKS = """\
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256))

    def forward(self, x):
        return x + self.layers(x)


def build_model():
    return nn.Sequential(*(Block() for _ in range(4)))


def make_batch(batch_size):
    return torch.randn(batch_size, 64, 256)


def training_step(model, batch):
    return model(batch).square().mean()
"""
WITHOUT_PLACE = BLOCKS.replace("def build_model", "def make") + "\n\nbuild_model = make\n"
"""No `def build_model`, at whose end the code would go."""
CARD = ("--gpu", "rtx-4090", "--capacity", "512MiB")
CHECKPOINT = [
    word for one in REMEDIES if not one.on_request and one.id != "checkpoint" for word in ("--without", one.id)
]


def asked(
    folder: Path, *options: str, source: str = BLOCKS, target: str = "model.py"
) -> subprocess.CompletedProcess[str]:
    """The command's answer about checkpointing."""
    (folder / "model.py").write_text(source)
    return run_here(["prescribe", target, *CARD, *CHECKPOINT, *options, "-q"], folder)


@pytest.mark.null_gpu
@pytest.mark.usefixtures("forked_workers")
class TestNothingIsWritten:
    """Exit code 1, with what was measured and why."""

    def test_where_the_file_has_no_place_for_the_code(self, tmp_path: Path) -> None:
        """What was to be written, and why it was not, are told beside what is prescribed."""
        done = asked(tmp_path, "--target-batch", "220", "--write", "better.py", "--json", source=WITHOUT_PLACE)
        document: dict[str, Any] = json.loads(done.stdout)
        assert (done.returncode, document["status"], document["exit_code"]) == (1, "not_written", 1)
        assert document["result"]["warnings"][-1] == (
            "nothing was written to `better.py`: the file defines no function `build_model`, where the code would go"
        )
        assert document["result"]["prescribed"]["remedies"][0].startswith("checkpoint")
        assert not (tmp_path / "better.py").exists()

    def test_where_nothing_is_prescribed(self, tmp_path: Path) -> None:
        """The whole target batch fits as it is."""
        done = asked(tmp_path, "--target-batch", "8", "--write", "better.py")
        assert done.returncode == 1
        assert "Nothing was written to `better.py`: nothing is prescribed." in done.stdout
        assert not (tmp_path / "better.py").exists()

        done = asked(tmp_path, "--target-batch", "8", "--write", "better.py", "-o", "report.html")
        assert done.stderr.endswith("error: nothing was written to `better.py`: nothing is prescribed\n")

    def test_among_several_warnings(self, tmp_path: Path) -> None:
        """The line on stderr is about the file, also where the need is not reached and the step is warned of."""
        reads = "    print(float(model(batch).sum()))\n    return"
        source = WITHOUT_PLACE.replace("    return model(batch)", f"{reads} model(batch)")
        options = ("--target-batch", "400", "--need", "400", "--write", "better.py", "-o", "report.json")
        done = asked(tmp_path, *options, source=source)
        document = json.loads((tmp_path / "report.json").read_text())
        assert (done.returncode, document["status"]) == (1, "not_reached")
        assert len(document["result"]["warnings"]) > 1
        assert done.stderr.splitlines()[-1].startswith("error: nothing was written to `better.py`: ")

    def test_where_its_folder_went_away_meanwhile(self, tmp_path: Path) -> None:
        """The rows and the patch are printed all the same."""
        (tmp_path / "gone").mkdir()
        source = (
            BLOCKS + "\n\nimport pathlib, shutil\n\nshutil.rmtree(pathlib.Path(__file__).with_name('gone'), True)\n"
        )
        done = asked(tmp_path, "--target-batch", "220", "--write", "gone/better.py", source=source)
        assert (done.returncode, done.stderr) == (1, "")
        assert "Nothing was written to `gone/better.py`: `gone/better.py` cannot be written" in done.stdout
        assert "+++ b/model.py" in done.stdout


@pytest.mark.null_gpu
@pytest.mark.usefixtures("forked_workers")
def test_the_target_itself_is_overwritten_where_that_is_forced(tmp_path: Path) -> None:
    """With the file that was proven, and the report says so."""
    done = asked(tmp_path, "--target-batch", "220", "--write", "model.py", "--force")
    assert done.returncode == 0, done.stderr
    assert "The patched file, written to `model.py`, was probed" in done.stdout
    written = (tmp_path / "model.py").read_text()
    assert written != BLOCKS
    assert "torch.utils.checkpoint.checkpoint" in written


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        (("--write", "model.py"), "`model.py` exists, and `--write` overwrites nothing by itself", "--force"),
        (("--write", "notes.txt"), "`notes.txt` exists", "name a new file, or overwrite this one with `--force`"),
        (("--write", "link.py"), "`link.py` exists", "--force"),
        (("--write", "-"), "`--write -` names no file", "the patch is printed"),
        (("--force",), "`--force` is for `--write`", "name a file with `--write PATH`"),
        (("--write", "a.py", "--output", "./a.py", "--format", "text"), "both name `a.py`", "a file of its own"),
    ],
)
def test_a_wrong_place_is_refused_before_anything_is_probed(
    options: tuple[str, ...], message: str, hint: str, oomdoctor_here: Run, tmp_path: Path
) -> None:
    """Exit code 2, with what to do, and every file is as it was."""
    (tmp_path / "model.py").write_text(BLOCKS)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "link.py").symlink_to("notes.txt")
    done = oomdoctor_here("prescribe", "model.py", *CARD, *options, "-q")
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert hint in done.stderr
    assert (tmp_path / "model.py").read_text() == BLOCKS
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.py", "model.py", "notes.txt"]


@pytest.mark.parametrize(
    ("target", "message", "hint"),
    [
        ("model", "`model` is a module, and patches are made of files", "leave `--write` out"),
        ("timm:resnet50", "`timm:resnet50` is a name", "`oomdoctor init 'timm:resnet50' > model.py` writes this one"),
    ],
)
def test_what_is_no_file_is_refused_before_anything_is_probed(
    target: str, message: str, hint: str, oomdoctor_here: Run, tmp_path: Path
) -> None:
    """Exit code 2: no patch could be made of it, whatever the probes find."""
    (tmp_path / "model.py").write_text(BLOCKS)
    done = oomdoctor_here("prescribe", target, *CARD, "--write", "better.py", "-q")
    assert done.returncode == 2
    assert message in done.stderr
    assert hint in done.stderr


@pytest.mark.null_gpu
@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize(("target", "probes"), [("model", 2), ("model.py", 1)])
def test_a_probe_is_kept_for_the_patch_of_a_file_alone(target: str, probes: int, tmp_path: Path) -> None:
    """Of two probes the second one measures a remedy where no patch is possible, and else would be the patch's."""
    done = asked(tmp_path, "--target-batch", "220", "--budget", "2", "--json", target=target)
    result = json.loads(done.stdout)["result"]
    assert result["probes"] == probes
    assert (result["alone"][0]["outcome"] == "measured") is (probes > 1)
