"""Verdicts on the loops of Accelerate, Lightning and the Trainer: their own, and mistakes in what users add."""

from __future__ import annotations

from pathlib import Path

import pytest
from recorded_scripts import changed, judged, line_of

pytestmark = pytest.mark.slow

MODEL = """\
import sys
import warnings

import torch
from torch import nn

warnings.simplefilter("ignore")
batch_size, accumulation_steps = map(int, sys.argv[1:])
torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(204, 10), torch.randint(3, (204,)))
loader = torch.utils.data.DataLoader(data, batch_size=batch_size, shuffle=True)
model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)
shadow = [parameter.detach().clone() for parameter in model.parameters()]
"""
ACCELERATE = (
    MODEL
    + """\
from accelerate import Accelerator

accelerator = Accelerator(gradient_accumulation_steps=accumulation_steps, cpu=True)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
for epoch in range(2):
    for inputs, labels in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(inputs), labels)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
"""
)
LIGHTNING = (
    MODEL
    + """\
import logging

import lightning

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = model

    def training_step(self, batch, index):
        inputs, labels = batch
        return nn.functional.cross_entropy(self.net(inputs), labels)

    def on_before_backward(self, loss):
        pass

    def on_after_backward(self):
        pass

    def on_train_batch_end(self, *_):
        pass

    def configure_optimizers(self):
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


trainer = lightning.Trainer(
    max_epochs=2, accumulate_grad_batches=accumulation_steps, gradient_clip_val=1.0, accelerator="cpu", logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(Net(), loader)
"""
)
TRAINER = """\
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

batch_size, accumulation_steps = map(int, sys.argv[1:])
torch.manual_seed(0)
size = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2}
model = LlamaForCausalLM(LlamaConfig(vocab_size=64, num_hidden_layers=1, **size))
lengths = torch.randint(4, 13, (200,)).tolist()
data = [{"input_ids": torch.randint(1, 64, (length,)).tolist()} for length in lengths]


def collate(samples):
    tokens = [sample["input_ids"] for sample in samples]
    longest = max(map(len, tokens))
    padded = torch.tensor([each + [0] * (longest - len(each)) for each in tokens])
    return {"input_ids": padded, "attention_mask": padded.ne(0), "labels": padded.masked_fill(padded.eq(0), -100)}


class OwnTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    def training_step(self, *arguments):
        return super().training_step(*arguments)


class Callback(TrainerCallback):
    def on_substep_end(self, args, state, control, **known):
        pass


arguments = TrainingArguments(
    "out", per_device_train_batch_size=batch_size, gradient_accumulation_steps=accumulation_steps, num_train_epochs=2,
    report_to=[], save_strategy="no", disable_tqdm=True, logging_strategy="no", use_cpu=True,
)
trainer = OwnTrainer(model, arguments, train_dataset=data, data_collator=collate, callbacks=[Callback()])
trainer.train()
"""
BACKWARD = "            accelerator.backward(loss)\n"
SUBSTEP = "state, control, **known):\n        pass"
AFTER = "on_after_backward(self):\n        pass"
OWN_LOSS = "        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)"

ACCELERATED: dict[str, tuple[str, str]] = {
    "partial_window": ("            optimizer.step()", "            optimizer.step()  # here"),
    "divided_twice": ("backward(loss)", "backward(loss / accumulation_steps)  # here"),
    "zero_grad": (BACKWARD, "            optimizer.optimizer.zero_grad()  # here\n" + BACKWARD),
    "clip": (BACKWARD, BACKWARD + "            nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # here\n"),
    "scheduler": ("            scheduler.step()", "            scheduler.scheduler.step()  # here"),
    "average": (BACKWARD, BACKWARD + "            shadow[0].lerp_(model[0].weight.detach(), 0.1)  # here\n"),
}
LIGHTNINGS: dict[str, list[tuple[str, str]]] = {
    "partial_window": [("trainer.fit(Net(), loader)", "trainer.fit(Net(), loader)  # here")],
    "zero_grad": [("loss):\n        pass", "loss):\n        self.optimizers().zero_grad()  # here")],
    "clip": [(AFTER, AFTER.replace("pass", "nn.utils.clip_grad_norm_(self.parameters(), 1.0)  # here"))],
    "scheduler": [(AFTER, AFTER.replace("pass", "self.lr_schedulers().step()  # here")), ('"step"', '"epoch"')],
    "average": [("*_):\n        pass", "*_):\n        shadow[0].lerp_(self.net[0].weight.detach(), 0.1)  # here")],
}
STEP = ("training_step(*arguments)\n", "training_step(*arguments)  # here\n")
CLIPPED = 'torch.nn.utils.clip_grad_norm_(known["model"].parameters(), 1.0)  # here'
TRAINERS: dict[str, list[tuple[str, str]]] = {
    "": [],
    "weights": [
        (OWN_LOSS, "        return model(**inputs).loss"),
        ("trainer.train()", "trainer.model_accepts_loss_kwargs = False\ntrainer.train()"),
        STEP,
    ],
    "division": [(OWN_LOSS, f"{OWN_LOSS} * accumulation_steps"), STEP],
    "zero_grad": [
        (
            "        return super().training_step",
            "        arguments[0].zero_grad()  # here\n        return super().training_step",
        )
    ],
    "clip": [(SUBSTEP, SUBSTEP.replace("pass", CLIPPED))],
    "scheduler": [(SUBSTEP, SUBSTEP.replace("pass", 'known["lr_scheduler"].step()  # here'))],
}
EVEN = [("(204", "(200")]
CASES = [
    (ACCELERATE, EVEN, ""),
    (LIGHTNING, EVEN, ""),
    *((ACCELERATE, [replacement], cause) for cause, replacement in ACCELERATED.items()),
    *((LIGHTNING, replacements, cause) for cause, replacements in LIGHTNINGS.items()),
    *((TRAINER, replacements, cause) for cause, replacements in TRAINERS.items()),
]
"""Scripts, what is changed in them, and the first cause; its line ends with `# here`."""
LIBRARIES = {ACCELERATE: "Accelerate", LIGHTNING: "Lightning", TRAINER: "Trainer"}


@pytest.fixture(scope="module", autouse=True)
def _imported() -> None:
    """Import the libraries once: each script runs in a fork."""
    import accelerate
    import lightning
    from transformers import LlamaForCausalLM, Trainer

    assert accelerate
    assert lightning
    assert LlamaForCausalLM
    assert Trainer


@pytest.mark.parametrize(
    ("source", "replacements", "cause"), CASES, ids=[f"{LIBRARIES[case[0]]} {case[2] or 'equal'}" for case in CASES]
)
def test_mistakes_are_found_at_the_users_line(
    source: str, replacements: list[tuple[str, str]], cause: str, tmp_path: Path
) -> None:
    """The first cause and its line are named; the Trainer's own loop, with unequal tokens and padding, is equal."""
    source = changed(source, replacements)
    script = tmp_path / "train.py"
    script.write_text(source, encoding="utf-8")
    result = judged(script)
    expected = [(cause, f"train.py:{line_of(source)}")] if cause else []
    assert [(each.id, each.location) for each in result.causes[:1]] == expected
    # Accelerate and Lightning divide the last window by all steps, whatever else is wrong.
    assert {each.id for each in result.causes[1:]} <= {"partial_window"}
    assert result.verdict == {"": "equal", "weights": "equal_if_weighted"}.get(cause, "different")
