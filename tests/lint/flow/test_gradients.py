"""Whether autograd records, by what is around a forward pass."""

from __future__ import annotations

import pytest
from happening import event

from oomdoctor.lint.flow.events import Action, GradMode

OFF, ON, UNKNOWN = GradMode.OFF, GradMode.ON, GradMode.UNKNOWN


@pytest.mark.parametrize(
    ("manager", "gradients"),
    [
        ("torch.no_grad()", OFF),
        ("torch.inference_mode()", OFF),
        ("torch.inference_mode(False)", ON),
        ("torch.inference_mode(mode=flag)", UNKNOWN),
        ("torch.set_grad_enabled(False)", OFF),
        ("torch.set_grad_enabled(True)", ON),
        ("torch.set_grad_enabled(training)", UNKNOWN),
        ("torch.enable_grad()", ON),
        ("torch.autograd.no_grad()", OFF),
        ("torch.no_grad() if flag else nullcontext()", UNKNOWN),
        ("torch.autocast('cuda'), torch.no_grad()", OFF),
        ("torch.autocast('cuda')", ON),
        ("context", OFF),
        ("self.no_grad_context()", OFF),
        ("evaluation_mode(model)", UNKNOWN),
        ("open(path)", ON),
    ],
)
def test_context_managers(manager: str, gradients: GradMode) -> None:
    """Each manager that switches recording is known, and one that only sounds so leaves it unknown."""
    text = (
        "def work(self, model, x, flag):\n"
        "    context = torch.no_grad()\n"
        f"    with {manager}:\n"
        "        model(x)\n"
        "    model.eval()"
    )
    assert event(f"{text}\n    'no_grad'", Action.FORWARD).context.gradients is gradients


@pytest.mark.parametrize(
    ("decorator", "gradients"),
    [
        ("torch.no_grad()", OFF),
        ("torch.no_grad", OFF),
        ("torch.inference_mode()", OFF),
        ("functools.cache", ON),
        ("smart_inference_mode", OFF),
    ],
)
def test_decorators(decorator: str, gradients: GradMode) -> None:
    """A function under a decorator that switches recording runs so."""
    text = f"@{decorator}\ndef work(model, x):\n    model(x)\n    model.eval()"
    assert event(text, Action.FORWARD).context.gradients is gradients


def test_a_statement_switches_what_follows() -> None:
    """`torch.set_grad_enabled(False)` as a statement holds from there on."""
    text = "def work(model, x):\n    torch.set_grad_enabled(False)\n    model(x)\n    model.eval()"
    assert event(text, Action.FORWARD).context.gradients is OFF


@pytest.mark.parametrize(("base", "gradients"), [("pl.LightningModule", OFF), ("nn.Module", ON)])
def test_lightning_switches_recording_off_in_validation(base: str, gradients: GradMode) -> None:
    """Lightning calls `validation_step` without recording; a plain module's method of that name is nobody's."""
    text = (
        "import lightning as pl\n"
        f"class Net({base}):\n"
        "    def validation_step(self, batch):\n"
        "        self.net.eval(); self.net(batch)"
    )
    assert event(text, Action.FORWARD).context.gradients is gradients
