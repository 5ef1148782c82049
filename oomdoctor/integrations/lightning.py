"""Lightning: a `BatchSizeFinder` whose answer is exact, and which reaches a target batch by accumulation.

    trainer = Trainer(callbacks=[BatchSizeFinder(target_batch=256)])
    trainer.fit(model, datamodule=data)

`data.batch_size` (or the model's) and `trainer.accumulate_grad_batches` have their values before the first step.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any

from oomdoctor.errors import TargetError, UsageError
from oomdoctor.integrations import need
from oomdoctor.integrations.trainer_memory import CudaMemory
from oomdoctor.integrations.trainers import FoundSize, find_size, indices_of
from oomdoctor.integrations.training_state import kept_random_state

need("lightning.pytorch", "lightning")

from lightning.pytorch import callbacks  # noqa: E402
from lightning.pytorch.trainer.connectors.data_connector import _DataLoaderSource  # noqa: E402
from lightning.pytorch.utilities.parsing import lightning_hasattr, lightning_setattr  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch
    from lightning.pytorch import LightningModule, Trainer

    from oomdoctor.integrations.trainer_memory import Memory

__all__ = ["BatchSizeFinder"]


class BatchSizeFinder(callbacks.BatchSizeFinder):
    """Callback that sizes a fit before its first step, for one GPU.

    The trials are optimizer steps of the trainer itself. Weights, optimizer, counters, random numbers and memory are
    afterwards as they were; nothing is written to disk.

    Args:
        target_batch: Samples per optimizer step.
        batch_arg_name: Attribute of the model, its `hparams` or the data module from which `train_dataloader` reads
            the batch size.
        headroom: Part of the memory that stays free, in [0, 1).
        samples: Indices of the samples that trials train on, such as the longest; None for the first ones.

    Attributes:
        found: The sizes; None before the fit.
        optimal_batch_size: Their micro-batch; None before the fit.

    Raises:
        UsageError: The trainer cannot be sized: its loader, its attribute, its target batch, several GPUs.
        TargetError: A step fails for another reason than memory, or the loader does not heed the attribute.
        NoAnswerError: Not one sample fits.
    """

    def __init__(
        self,
        target_batch: int,
        *,
        batch_arg_name: str = "batch_size",
        headroom: float = 0.0,
        samples: Sequence[int] | None = None,
    ) -> None:
        super().__init__(batch_arg_name=batch_arg_name)
        self._target_batch = target_batch
        self._headroom = headroom
        self._samples = samples
        self.optimal_batch_size = None
        self.found: FoundSize | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str | None = None) -> None:
        """Refuse what cannot be sized, before the model is placed.

        Raises:
            UsageError: The trainer cannot be sized.
        """
        if stage == "fit":
            _check(trainer, pl_module, self._batch_arg_name)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Find the sizes and set them."""
        self.found = self._find(trainer, CudaMemory(pl_module.device))
        self.optimal_batch_size = self.found.plan.micro_batch
        _apply(trainer, self._batch_arg_name, self.found)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Do nothing: a fit alone is sized."""

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Do nothing: a fit alone is sized."""

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Do nothing: a fit alone is sized."""

    def _find(self, trainer: Trainer, memory: Memory) -> FoundSize:
        with kept_random_state():
            loader = trainer.fit_loop._data_source.dataloader()  # noqa: SLF001 - as Lightning's own finder does
            fitting = _Fitting(trainer, loader, indices_of(loader, self._samples))
        samples = len(loader.dataset)
        return find_size(fitting, memory, target_batch=self._target_batch, samples=samples, headroom=self._headroom)


class _Fitting:
    """The trainer's own loop, on batches of any size, as `oomdoctor.integrations.trainers.Trainer` says."""

    def __init__(self, trainer: Any, loader: Any, indices: Sequence[int]) -> None:  # noqa: ANN401 - connectors set much
        self._trainer, self._loader, self._indices = trainer, loader, indices
        self.model: torch.nn.Module = trainer.lightning_module

    def roots(self) -> Sequence[object]:
        """Return the trainer, which holds the model, the optimizers and the loops."""
        return (self._trainer,)

    def train(self, micro_batch: int, micro_steps: int, steps: int) -> None:
        """Run the loop for one epoch of so many batches; all that is set here is put back by whoever calls."""
        trainer, loop = self._trainer, self._trainer.fit_loop
        trainer.callbacks, trainer.loggers = [], []
        trainer.strategy.lr_scheduler_configs = []  # some need a metric that only an evaluation has
        trainer.accumulate_grad_batches = micro_steps
        trainer.limit_train_batches, trainer.limit_val_batches = 1.0, 0
        trainer.overfit_batches, trainer.val_check_interval = 0.0, 1.0
        trainer.reload_dataloaders_every_n_epochs = 0
        loop.max_epochs, loop.epoch_loop.max_steps = trainer.current_epoch + 1, -1
        loop.min_epochs, loop.epoch_loop.min_steps = None, None
        batch = self._batch(micro_batch)
        loop._data_source = _DataLoaderSource(_Batches(batch, micro_steps * steps), "train_dataloader")  # noqa: SLF001
        loop._combined_loader = None  # noqa: SLF001 - makes the loop take the new data
        loop.run()

    def _batch(self, size: int) -> object:
        dataset, count = self._loader.dataset, len(self._indices)
        return self._loader.collate_fn([dataset[self._indices[index % count]] for index in range(size)])


class _Batches:
    """One batch, so many times; a list would be taken for a list of loaders."""

    def __init__(self, batch: object, count: int) -> None:
        self._batch, self._count = batch, count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[object]:
        return repeat(self._batch, self._count)


def _check(trainer: Any, module: LightningModule, name: str) -> None:  # noqa: ANN401 - as above
    """See that the trainer can be sized.

    Raises:
        UsageError: It cannot; the hint says what to change.
    """
    if trainer.world_size > 1:
        raise UsageError(
            f"the trainer has {trainer.world_size} devices, and one is sized",
            hint="`oomdoctor probe --world-size N -- python train.py ...` asks for ranks of a world",
        )
    if not trainer.fit_loop._data_source.is_module():  # noqa: SLF001 - as Lightning's own finder does
        raise UsageError(
            "the loader was passed to `fit`, so that its batch size is set already",
            hint="define `train_dataloader` in the LightningModule or a LightningDataModule, with `self.batch_size`",
        )
    if not lightning_hasattr(module, name):
        raise UsageError(
            f"neither the model, its `hparams` nor the data module has an attribute `{name}`",
            hint=f"set `self.{name}` in its `__init__`, or pass `batch_arg_name=`",
        )
    schedules = any(isinstance(each, callbacks.GradientAccumulationScheduler) for each in trainer.callbacks)
    if not module.automatic_optimization or schedules:
        why = "`GradientAccumulationScheduler` sets" if module.automatic_optimization else "manual optimization decides"
        raise UsageError(f"{why} the accumulation steps of this model", hint="leave them to the trainer")


def _apply(trainer: Trainer, name: str, found: FoundSize) -> None:
    """Set the sizes, and make what was made with the old ones anew.

    Raises:
        TargetError: The loader does not heed the attribute.
    """
    plan, source = found.plan, trainer.fit_loop._data_source  # noqa: SLF001 - as above
    lightning_setattr(trainer.lightning_module, name, plan.micro_batch)
    trainer.accumulate_grad_batches = plan.steps
    trainer.fit_loop._combined_loader = None  # noqa: SLF001 - an optimizer's configuration may have loaded it
    with kept_random_state():
        loader: Any = source.dataloader()
        size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
        if size != plan.micro_batch:
            raise TargetError(
                f"`train_dataloader` gives batches of {size}, although `{name}` is {plan.micro_batch}",
                hint=f"read `self.{name}` where the DataLoader is made",
            )
        trainer.strategy.setup_optimizers(trainer)  # schedules may depend on the number of steps
