"""Train GPT-2 124M from scratch with Lightning.

python lightning_gpt2.py --batch-size 8 --accumulate-grad-batches 4
"""

from argparse import ArgumentParser

import lightning as L
import torch
from synthetic_tokens import SyntheticTokens
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel


class LitGPT2(L.LightningModule):
    def __init__(self, learning_rate=6e-4, layers=12):
        super().__init__()
        self.save_hyperparameters()
        self.model = GPT2LMHeadModel(GPT2Config(n_layer=layers))

    def forward(self, **inputs):
        return self.model(**inputs)

    def training_step(self, batch, batch_idx):
        loss = self(**batch).loss
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.learning_rate)


class TokensDataModule(L.LightningDataModule):
    def __init__(self, batch_size=8):
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage):
        self.train_set = SyntheticTokens()

    def train_dataloader(self):
        return DataLoader(self.train_set, batch_size=self.batch_size, shuffle=True)


def main(args):
    L.seed_everything(args.seed)
    model = LitGPT2(learning_rate=args.learning_rate, layers=args.layers)
    datamodule = TokensDataModule(batch_size=args.batch_size)
    trainer = L.Trainer(
        accelerator="auto",
        devices=1,
        precision="bf16-mixed",
        max_steps=args.max_steps,
        accumulate_grad_batches=args.accumulate_grad_batches,
        gradient_clip_val=1.0,
    )
    trainer.fit(model, datamodule=datamodule)


if __name__ == "__main__":
    parser = ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--accumulate-grad-batches", type=int, default=1)
    parser.add_argument("--max-steps", type=int, default=1000)
    parser.add_argument("--learning-rate", type=float, default=6e-4)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--seed", type=int, default=42)
    main(parser.parse_args())
