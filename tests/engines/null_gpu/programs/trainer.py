"""An unmodified Hugging Face Trainer script: GPT-2 from its configuration, at the micro-batch given."""

# ruff: noqa: D101
from __future__ import annotations

import sys
import tempfile

import torch
from reporting import leave_with
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Tokens(Dataset):
    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(0, 50257, (1024,))
        return {"input_ids": tokens, "labels": tokens}


arguments = TrainingArguments(
    tempfile.mkdtemp(),
    per_device_train_batch_size=int(sys.argv[1]),
    gradient_accumulation_steps=2,
    max_steps=4,
    bf16=True,
    report_to=[],
    save_strategy="no",
)
trainer = Trainer(model=GPT2LMHeadModel(GPT2Config()), args=arguments, train_dataset=Tokens())
ran_out = False
try:
    trainer.train()
except torch.OutOfMemoryError:
    ran_out = True
leave_with(ran_out=ran_out, steps=trainer.state.global_step, peak=torch.cuda.max_memory_allocated())
