"""A training of a small GPT-2 with transformers: `trainer_gpt2.py MICRO_BATCH ACCUMULATION_STEPS`."""

import sys

from trainer_models import Samples, build
from transformers import Trainer, TrainingArguments

micro_batch, steps = map(int, sys.argv[1:])
args = TrainingArguments(
    "out", per_device_train_batch_size=micro_batch, gradient_accumulation_steps=steps, max_steps=20,
    logging_strategy="no", save_strategy="no", report_to="none", disable_tqdm=True, optim="adamw_torch",
)  # fmt: skip
Trainer(model=build("gpt2"), args=args, train_dataset=Samples("gpt2", 40960)).train()
