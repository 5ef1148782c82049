"""Train GPT-2 124M from scratch with the Hugging Face Trainer.

python trainer.py --output_dir out --per_device_train_batch_size 8 --gradient_accumulation_steps 4 --bf16 --max_steps 1000
"""

from dataclasses import dataclass, field

from synthetic_tokens import SyntheticTokens
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    default_data_collator,
    set_seed,
)


@dataclass
class DataArguments:
    block_size: int = field(default=1024, metadata={"help": "Tokens in each training sequence."})
    n_layer: int = field(default=12, metadata={"help": "Blocks of the model."})
    max_train_samples: int = field(default=100_000, metadata={"help": "How many training sequences there are."})


def main():
    parser = HfArgumentParser((DataArguments, TrainingArguments))
    data_args, training_args = parser.parse_args_into_dataclasses()
    set_seed(training_args.seed)

    config = GPT2Config(n_layer=data_args.n_layer)
    model = GPT2LMHeadModel(config)
    train_dataset = SyntheticTokens(config.vocab_size, data_args.block_size, data_args.max_train_samples)

    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=train_dataset,
        data_collator=default_data_collator,
    )
    train_result = trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
    trainer.save_model()
    trainer.log_metrics("train", train_result.metrics)
    trainer.save_metrics("train", train_result.metrics)
    trainer.save_state()


if __name__ == "__main__":
    main()
