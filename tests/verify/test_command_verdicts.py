"""Verdicts on training loops, right ones and such with one mistake each, and the lines that are named."""

from __future__ import annotations

from pathlib import Path

import pytest
from recorded_scripts import changed, judged, line_of

LOOP = """\
import random
import sys

import torch
from torch import nn

batch_size, accumulation_steps = map(int, sys.argv[1:])
torch.manual_seed(1)


class Data(torch.utils.data.Dataset):
    def __init__(self):
        self.inputs, self.labels = torch.randn(1004, 10), torch.randint(3, (1004,))

    def __len__(self):
        return 1004

    def __getitem__(self, index):
        return self.inputs[index], self.labels[index]


model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 3))
loader = torch.utils.data.DataLoader(Data(), batch_size=batch_size, shuffle=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
shadow = [parameter.detach().clone() for parameter in model.parameters()]


def criterion(outputs, labels):
    return nn.functional.cross_entropy(outputs, labels)


def update_shadow():
    for kept, parameter in zip(shadow, model.parameters()):
        kept.mul_(0.9).add_(parameter.detach(), alpha=0.1)


for epoch in range(2):
    optimizer.zero_grad()
    for index, (inputs, labels) in enumerate(loader):
        first = index // accumulation_steps * accumulation_steps
        in_window = min(accumulation_steps, len(loader) - first)
        loss = criterion(model(inputs), labels)
        (loss / in_window).backward()
        if (index + 1) % accumulation_steps == 0 or index + 1 == len(loader):
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            scheduler.step()
            average.update_parameters(model)
            optimizer.zero_grad()
"""

BACKWARD = "        (loss / in_window).backward()\n"
STEP = "            optimizer.step()\n"
STEP_HERE = (STEP, "            optimizer.step()  # here\n")
BOUNDARY = "(index + 1) % accumulation_steps == 0 or index + 1 == len(loader)"
CLIP = "            nn.utils.clip_grad_norm_(model.parameters(), 0.1)\n"
SCHEDULE = "            scheduler.step()\n"
AVERAGE = "            average.update_parameters(model)\n"
SCALER = ("for epoch", "scaler = torch.amp.GradScaler('cpu', init_scale=1024.0)\nfor epoch")
SCALED = (BACKWARD, "        scaler.scale(loss / in_window).backward()\n")
SCALED_STEP = (STEP, "            scaler.step(optimizer)\n            scaler.update()\n")

OWN_NORM = """\
            norm = sum(parameter.grad.square().sum() for parameter in model.parameters()).sqrt()
            for parameter in model.parameters():
                parameter.grad *= 0.1 / norm
"""
DIVIDED_LATER = """\
            for parameter in model.parameters():
                parameter.grad /= in_window
"""
ONE_BATCH = """\
        for part, answers in zip(inputs.split(batch_size), labels.split(batch_size)):
            loss = criterion(model(part), answers)
            (loss * len(part) / len(inputs)).backward()
"""
IN_NO_SYNC = """\
        with torch.autograd.set_multithreading_enabled(False):
            (loss / in_window).backward()
"""
MEASURED = """\
        with torch.no_grad():
            norm = sum(parameter.norm() for parameter in model.parameters())
"""
EVALUATION = """\
            with torch.no_grad():
                model.eval()(inputs)
            model.train()
"""
DROPPED = """\
        for parameter in model.parameters():
            parameter.grad = None
        (loss / in_window).backward()  # here
"""
INTERPOLATED = """\
        with torch.no_grad():
            for kept, parameter in zip(shadow, model.parameters()):
                kept.lerp_(parameter, 0.1)  # here
"""
MANUAL_RATE = """\
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * 0.9 ** ({count})
"""
SUMMED = """\
        total = loss / in_window + (0 if index % accumulation_steps == 0 else total)
        if (index + 1) % accumulation_steps == 0 or index + 1 == len(loader):
            total.backward()
"""
CLAMPED = """\
        for parameter in model.parameters():
            parameter.data.clamp_(-0.1, 0.1)
"""
HOOKED = """\
for parameter in model.parameters():
    parameter.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))
"""
OF_STATE = """\
        for name, value in model.state_dict().items():
            state[name] = 0.9 * state[name] + 0.1 * value  # here
"""


def after_backward(line: str) -> tuple[str, str]:
    """A replacement that adds lines below the backward."""
    return BACKWARD, BACKWARD + line


RIGHT: dict[str, list[tuple[str, str]]] = {
    "as it is": [],
    "zeros in place of None": [("zero_grad()", "zero_grad(set_to_none=False)")],
    "no clipping": [(CLIP, "")],
    "SGD": [("AdamW(model.parameters(), lr=1e-2)", "SGD(model.parameters(), lr=1.0, momentum=0.9)")],
    "autocast": [
        (
            "        loss = criterion(",
            "        with torch.autocast('cpu', torch.bfloat16):\n            loss = criterion(",
        )
    ],
    "a gradient scaler": [SCALER, SCALED, SCALED_STEP, (CLIP, "            scaler.unscale_(optimizer)\n" + CLIP)],
    "a gradient scaler that unscales in its step": [SCALER, SCALED, SCALED_STEP, (CLIP, "")],
    "gradients divided before the step": [(BACKWARD, "        loss.backward()\n"), (CLIP, DIVIDED_LATER + CLIP)],
    "a backward in a context": [(BACKWARD, IN_NO_SYNC)],
    "an average by hand": [("average.update_parameters(model)", "update_shadow()")],
    "a schedule that counts micro-batches": [
        ("StepLR(optimizer, 10)", "CosineAnnealingLR(optimizer, 2 * len(loader))"),
        (SCHEDULE, ""),
        after_backward("        scheduler.step()\n"),
    ],
    "a schedule by epochs": [
        (SCHEDULE, ""),
        (
            "    optimizer.zero_grad()\n    for",
            "    if epoch:\n        scheduler.step()\n    optimizer.zero_grad()\n    for",
        ),
    ],
    "sums divided by the window's count": [
        ("cross_entropy(outputs, labels)", "cross_entropy(outputs, labels, reduction='sum')"),
        ("loss / in_window", "loss / (in_window * len(inputs))"),
    ],
    "a large batch cut by hand": [
        ("batch_size=batch_size", "batch_size=batch_size * accumulation_steps"),
        ("        loss = criterion(model(inputs), labels)\n" + BACKWARD, ONE_BATCH),
        (BOUNDARY, "True"),
    ],
    "losses added up before one backward": [(BACKWARD, SUMMED)],
    "a learning rate by progress": [
        (SCHEDULE, ""),
        ("        first =", MANUAL_RATE.format(count="10 * index / len(loader)") + "        first ="),
    ],
    "blocks that are computed again": [
        ("criterion(model(inputs)", "criterion(torch.utils.checkpoint.checkpoint(model, inputs, use_reentrant=False)")
    ],
    "an evaluation in between": [(STEP, EVALUATION + STEP)],
    "weights that are measured": [after_backward(MEASURED)],
    "weight decay in the loss": [
        ("cross_entropy(outputs, labels)", "cross_entropy(outputs, labels) + sum((p * p).sum() for p in shadow)")
    ],
}
"""Loops that train what the whole batch would."""

WRONG: dict[str, tuple[str, list[tuple[str, str]]]] = {
    "zero_grad at the top": (
        "zero_grad",
        [("        first =", "        optimizer.zero_grad()  # here\n        first =")],
    ),
    "gradients dropped by hand": ("zero_grad", [(BACKWARD, DROPPED)]),
    "no division": ("division", [(BACKWARD, "        loss.backward()  # here\n")]),
    "no division, and a norm of its own": (
        "division",
        [(BACKWARD, "        loss.backward()  # here\n"), (CLIP, OWN_NORM)],
    ),
    "divided twice": (
        "divided_twice",
        [(BACKWARD, "        (loss / in_window / accumulation_steps).backward()  # here\n")],
    ),
    "divided by something else": (
        "scale",
        [(BACKWARD, "        (loss / in_window / accumulation_steps ** 0.5).backward()  # here\n")],
    ),
    "clipping in every micro-step": (
        "clip",
        [after_backward("        nn.utils.clip_grad_norm_(model.parameters(), 0.1)  # here\n")],
    ),
    "clipping by value in every micro-step": (
        "clip",
        [after_backward("        torch.nn.utils.clip_grad_value_(model.parameters(), 5.0)  # here\n")],
    ),
    "a schedule in every micro-step": (
        "scheduler",
        [(SCHEDULE, ""), after_backward("        scheduler.step()  # here\n")],
    ),
    "a warm-up in every micro-step": (
        "scheduler",
        [
            ("StepLR(optimizer, 10)", "LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))"),
            (SCHEDULE, ""),
            after_backward("        scheduler.step()  # here\n"),
        ],
    ),
    "a learning rate by micro-steps": (
        "scheduler",
        [(SCHEDULE, ""), ("        first =", MANUAL_RATE.format(count="index") + "        first ="), STEP_HERE],
    ),
    "weights clamped in every micro-step": (
        "moved_weights",
        [(BACKWARD, "        (loss / in_window).backward()  # here\n" + CLAMPED)],
    ),
    "an average in every micro-step": (
        "average",
        [(AVERAGE, ""), after_backward("        average.update_parameters(model)  # here\n")],
    ),
    "an average by hand in every micro-step": (
        "average",
        [(AVERAGE, ""), after_backward("        update_shadow()\n"), ("alpha=0.1)", "alpha=0.1)  # here")],
    ),
    "an average by interpolation in every micro-step": ("average", [(AVERAGE, ""), after_backward(INTERPOLATED)]),
    "an average in a dict in every micro-step": (
        "average",
        [
            (AVERAGE, ""),
            ("for epoch", "state = {name: value.clone() for name, value in model.state_dict().items()}\nfor epoch"),
            after_backward(OF_STATE),
        ],
    ),
    "the last window divided by all steps": (
        "partial_window",
        [("loss / in_window", "loss / accumulation_steps"), STEP_HERE],
    ),
    "the last window mixed into the next epoch": (
        "partial_window",
        [
            (BOUNDARY, "(index + 1) % accumulation_steps == 0"),
            ("    optimizer.zero_grad()\n    for", "    for"),
            STEP_HERE,
        ],
    ),
    "a step in every micro-step": ("boundary", [(BOUNDARY, "True"), STEP_HERE]),
    "a boundary off by one": ("boundary", [(BOUNDARY, "index % accumulation_steps == 0"), STEP_HERE]),
}
"""Loops with one mistake each: its cause, and what makes it; the line that has to be named ends with `# here`."""

NOISE = """\
class Noise(nn.Module):
    def forward(self, inputs):
        return inputs + torch.randn_like(inputs)


"""
TWO_TOKENS = """\
    outputs = torch.cat([outputs, outputs])
    labels = torch.cat([labels, torch.where(labels == 0, -100, labels)])
"""
OTHER: dict[str, tuple[str, str, list[tuple[str, str]]]] = {
    "dropout": ("random_only", "", [("nn.ReLU()", "nn.Dropout(0.2)")]),
    "a mean over tokens": (
        "equal_if_weighted",
        "weights",
        [("    return nn.functional", TWO_TOKENS + "    return nn.functional")],
    ),
    "class weights": (
        "equal_if_weighted",
        "weights",
        [("(outputs, labels)\n\n\ndef u", "(outputs, labels, weight=torch.tensor([0.1, 1.0, 4.0]))\n\n\ndef u")],
    ),
    "a batch norm": ("different", "batch_norm", [("nn.ReLU()", "nn.BatchNorm1d(16)")]),
    "pairs of samples": (
        "different",
        "mixing",
        [("(outputs, labels)\n\n\ndef u", "(outputs @ outputs.T, torch.arange(len(outputs)))\n\n\ndef u")],
    ),
    "hooks that clamp each gradient": ("different", "mixing", [("for epoch", HOOKED + "for epoch")]),
    "noise": (
        "cannot_tell",
        "random_draws",
        [("model = ", NOISE + "model = "), ("nn.Linear(10, 16)", "Noise(), nn.Linear(10, 16)")],
    ),
    "random data by batches": (
        "cannot_tell",
        "samples",
        [("        first =", "        inputs = torch.randn(len(inputs), 10) * 2\n        first =")],
    ),
    "random weights": (
        "cannot_tell",
        "other_weights",
        [("torch.manual_seed(1)", "torch.manual_seed(batch_size)")],
    ),
    "fewer samples than the whole batch": ("cannot_tell", "samples", [("1004", "5")]),
    "two optimizers": (
        "cannot_tell",
        "several_optimizers",
        [
            (STEP, STEP + "            other.step()\n"),
            ("scheduler =", "other = torch.optim.SGD(model[0].parameters())\nscheduler ="),
        ],
    ),
}
"""Loops with other verdicts, with their causes."""

CLOSURE = """\
for inputs, labels in torch.utils.data.DataLoader(Data(), batch_size=batch_size * accumulation_steps):
    def closure():
        optimizer.zero_grad()
        for part, answers in zip(inputs.split(batch_size), labels.split(batch_size)):
            loss = criterion(model(part), answers)
            (loss * len(part) / len(inputs)).backward()
        return loss

    optimizer.step(closure)
"""
BATCHES = """\
data = Data()


def batches():
    for start in range(0, 48, batch_size):
        yield data.inputs[start : start + batch_size], data.labels[start : start + batch_size]


"""
NOTES: dict[str, tuple[str, list[tuple[str, str]]]] = {
    "a last window without a step": (
        "the last 2 micro-batches of an epoch, fewer than 4, get no optimizer step and are lost",
        [(BOUNDARY, "(index + 1) % accumulation_steps == 0")],
    ),
    "a window without a step that none of the script's own epochs has": (
        "OOM204` has more); with as many samples as there are now, no epoch has such a window",
        [("1004", "1000"), (BOUNDARY, "(index + 1) % accumulation_steps == 0")],
    ),
    "a partial window that none of the script's own epochs has": (
        "with as many samples as there are now, no epoch has such a window",
        [("1004", "1000"), ("loss / in_window", "loss / accumulation_steps")],
    ),
    "a counter that runs on": (
        "windows run on over the end of an epoch",
        [
            ("for epoch", "count = 0\nfor epoch"),
            ("        first =", "        count += 1\n        first ="),
            ("in_window = min(accumulation_steps, len(loader) - first)", "in_window = accumulation_steps"),
            (BOUNDARY, "count % accumulation_steps == 0"),
            ("    optimizer.zero_grad()\n    for", "    for"),
        ],
    ),
    "data without a loader": (
        "no end of an epoch was seen",
        [
            ("enumerate(loader)", "enumerate(batches())"),
            ("in_window = min(accumulation_steps, len(loader) - first)", "in_window = accumulation_steps"),
            (BOUNDARY, "(index + 1) % accumulation_steps == 0"),
            (
                "for epoch",
                BATCHES + "for epoch",
            ),
        ],
    ),
}
"""Right loops of whose last window there is something to say."""


@pytest.mark.parametrize("name", OTHER)
def test_other_verdicts(name: str, tmp_path: Path) -> None:
    """What is equal with weights or but for random draws, what mixes samples, and what cannot be told."""
    verdict, cause, replacements = OTHER[name]
    script = tmp_path / "train.py"
    script.write_text(changed(LOOP, replacements), encoding="utf-8")
    result = judged(script)
    assert (result.verdict, [each.id for each in result.causes]) == (verdict, [cause] if cause else [])
    assert len(result.remedies) == len(result.causes)


@pytest.mark.parametrize("name", NOTES)
def test_the_last_window_is_told_of(name: str, tmp_path: Path) -> None:
    """A last window that is dropped, runs on or was not seen is no difference, and the report says so."""
    told, replacements = NOTES[name]
    script = tmp_path / "train.py"
    script.write_text(changed(LOOP, replacements), encoding="utf-8")
    result = judged(script)
    assert (result.verdict, result.causes) == ("equal", ())
    assert any(told in note for note in result.notes), result.notes


@pytest.mark.parametrize("name", RIGHT)
def test_right_loops_are_equal(name: str, tmp_path: Path) -> None:
    """A loop that accumulates rightly is equal, with every window of it, and no cause is named."""
    script = tmp_path / "train.py"
    script.write_text(changed(LOOP, RIGHT[name]), encoding="utf-8")
    result = judged(script)
    assert (result.verdict, result.causes) == ("equal", ())
    assert [error.sizes for error in result.errors][:3] == [(2,) * 4, (2,) * 4, (2,) * 2]


def test_an_optimizer_that_evaluates_again_is_judged_by_its_first_evaluation(tmp_path: Path) -> None:
    """LBFGS calls its closure several times in a step; each window has the micro-batches of the first call."""
    setup = LOOP[: LOOP.index("for epoch")]
    script = tmp_path / "train.py"
    lbfgs = ("AdamW(model.parameters(), lr=1e-2)", "LBFGS(model.parameters(), max_iter=3)")
    script.write_text(changed(setup, [lbfgs]) + CLOSURE, encoding="utf-8")
    result = judged(script)
    assert (result.verdict, result.causes) == ("equal", ())
    assert [error.sizes for error in result.errors][:2] == [(2,) * 4, (2,) * 4]


@pytest.mark.parametrize("name", WRONG)
def test_each_mistake_is_found_at_its_line(name: str, tmp_path: Path) -> None:
    """A loop with one mistake is different, for that cause alone, and its line is named."""
    kind, replacements = WRONG[name]
    source = changed(LOOP, replacements)
    script = tmp_path / "train.py"
    script.write_text(source, encoding="utf-8")
    result = judged(script)
    assert result.verdict == "different"
    assert [(cause.id, cause.location) for cause in result.causes] == [(kind, f"train.py:{line_of(source)}")]
