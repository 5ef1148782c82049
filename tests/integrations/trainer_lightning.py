"""A training with Lightning, whose finder is oomdoctor's or nobody's."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader
from trainer_models import Samples, build


class Classifier(pl.LightningModule):
    """A classifier that logs, counts its steps, and has a schedule that depends on the number of steps."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.network = build(name)
        self.losses: list[float] = []
        self.seen = 0

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        """The loss of a batch."""
        loss = torch.nn.functional.cross_entropy(self.network(batch[0]), batch[1])
        self.log("loss", loss)
        self.losses.append(float(loss.detach()))
        self.seen += 1
        return loss

    def configure_optimizers(self) -> Any:
        """An optimizer, and a schedule over all steps."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps + 1)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Data(pl.LightningDataModule):
    """Samples in batches of `batch_size`."""

    def __init__(self, name: str, batch_size: int = 2, length: int = 4096) -> None:
        super().__init__()
        self.samples, self.batch_size = Samples(name, length), batch_size

    def train_dataloader(self) -> DataLoader[Any]:
        """The samples in random order."""
        return DataLoader(self.samples, batch_size=self.batch_size, shuffle=True)


def trainer(**options: Any) -> pl.Trainer:
    """A trainer that writes nothing."""
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return pl.Trainer(**{**quiet, "devices": 1, **options})
