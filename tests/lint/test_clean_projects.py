"""Training code that is right, as well-known projects write it: lint has nothing to say."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from oomdoctor.lint.engine import check_module, lint, position_of_hit
from oomdoctor.lint.module import parse
from oomdoctor.lint.rules import ALL
from oomdoctor.lint.settings import LintSettings

CLEAN = Path(__file__).parent / "clean"
SCRIPTS = sorted(CLEAN.glob("*.py"))
DEFAULT = [rule for rule in ALL if rule.default]

MISTAKES = [
    ("pretraining_by_token_budget.py", "            loss = loss / grad_accum_steps\n", "", "OOM202"),
    ("pretraining_by_token_budget.py", "with torch.no_grad():", "if True:", "OOM101"),
    ("pretraining_with_sync_flag.py", "            scaler.unscale_(optimizer)\n", "", "OOM212"),
    ("pretraining_with_sync_flag.py", "@torch.no_grad()\n", "", "OOM101"),
    ("pretraining_with_sync_flag.py", "        optimizer.zero_grad(set_to_none=True)\n", "", "OOM210"),
    ("sharded_trainer.py", "losses.append(loss.detach())", "losses.append(loss)", "OOM102"),
    ("image_classification.py", "last_batch or (batch_idx + 1) %", "(batch_idx + 1) %", "OOM204"),
    ("image_classification.py", "last_batch or (batch_idx + 1) %", "last_batch or batch_idx %", "OOM203"),
    ("image_classification.py", "            if accum_steps > 1:\n                loss /= accum_steps\n", "", "OOM202"),
    ("image_classification.py", "with torch.inference_mode():", "if True:", "OOM101"),
    ("image_classification.py", "losses.update(loss.item() * accum", "losses.update(loss * accum", "OOM102"),
    ("accelerate_accumulates.py", "with torch.no_grad():", "if True:", "OOM101"),
    ("lightning_modules.py", "(batch_idx + 1) % self.accumulate", "batch_idx % self.accumulate", "OOM203"),
    ("fabric.py", "running += loss.detach()", "running += loss", "OOM102"),
    ("fabric.py", "fabric.backward(loss / accumulation)", "fabric.backward(loss)", "OOM202"),
    ("deepspeed_engine.py", "with torch.no_grad():", "if True:", "OOM101"),
    ("gan.py", 'history["d"].append(loss_d.item())', 'history["d"].append(loss_d)', "OOM102"),
    ("detection_references.py", "@torch.inference_mode()\n", "", "OOM101"),
    ("detection_references.py", 'map_location="cpu", weights_only=True', "weights_only=True", "OOM111"),
    ("finetuning_recipe.py", "if (idx + 1) % self.accumulation", "if idx % self.accumulation", "OOM203"),
    ("contrastive.py", "losses.append(loss.item())", "losses.append(loss)", "OOM102"),
    ("multi_task.py", "running += float(loss) * len(images)", "running += loss * len(images)", "OOM102"),
    ("searching_the_batch_size.py", "return False", "return try_size(model, optimizer, make_batch, 1)", "OOM121"),
    ("embedding_training.py", "with torch.no_grad():", "if True:", "OOM101"),
    ("embedding_training.py", "                optimizer.zero_grad()\n", "", "OOM210"),
    ("notebook_style.py", "running_loss += loss.item()", "running_loss += loss", "OOM102"),
    ("notebook_style.py", "with torch.no_grad():", "if True:", "OOM101"),
]  # fmt: skip
"""A script, what is taken out of it, what stands there then, and the rule that has to see it."""

IN_TORCH = {}
"""Findings in PyTorch's own package that are right: path, rule and text of the line, with the reason."""


def codes(text: str, path: Path) -> list[tuple[int, str]]:
    """Line and code of what lint says of a text."""
    return [(position_of_hit(hit)[0], rule.code) for rule, hit in check_module(parse(text, path), DEFAULT)]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_nothing_is_found_in_training_code_that_is_right(path: Path) -> None:
    """No rule that is on says anything of loops as careful projects write them, whatever the framework."""
    assert codes(path.read_text(encoding="utf-8"), path) == []


@pytest.mark.parametrize(("name", "right", "wrong", "code"), MISTAKES)
def test_the_same_code_with_a_mistake_is_found(name: str, right: str, wrong: str, code: str) -> None:
    """One mistake put into a clean script is seen, so that silence there means something."""
    text = (CLEAN / name).read_text(encoding="utf-8")
    assert right in text
    assert code in {found for _, found in codes(text.replace(right, wrong, 1), CLEAN / name)}


@pytest.mark.parametrize("room", ["optim", "nn", "utils", "amp", "autograd", "distributed"])
def test_nothing_false_is_found_in_pytorch_itself(room: str) -> None:
    """Of PyTorch's own optimizers, modules, loaders and distributed training only what was judged true is said."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    result = lint([str(package / room)], LintSettings(root=package)).result
    found = {(Path(one.path).relative_to(package).as_posix(), one.code, one.source.strip()) for one in result.findings}
    assert found <= set(IN_TORCH)
    assert result.lines > 1_000
