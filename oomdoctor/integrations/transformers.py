"""transformers: the sizes of a `Trainer`, set before it trains.

    trainer = Trainer(model=model, args=args, train_dataset=data, callbacks=[BatchSizeCallback(target_batch=256)])
    trainer.train()

or, between the two, `set_batch_size(trainer, target_batch=256)`. A `Trainer` makes its loader before the first event of
training, and the one event that is earlier, the end of its `__init__`, does not tell a callback whose it is: the
callback looks for the trainer among its callers, and sizes it where `train` begins.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Sized
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

from oomdoctor.errors import UsageError
from oomdoctor.integrations import need
from oomdoctor.integrations.trainer_memory import CudaMemory
from oomdoctor.integrations.trainers import FoundSize, find_size, indices_of
from oomdoctor.integrations.training_state import kept_random_state

need("transformers", "transformers")
need("accelerate", "transformers")

import torch  # noqa: E402
from transformers import (  # noqa: E402
    DefaultFlowCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_callback import CallbackHandler  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from oomdoctor.integrations.trainer_memory import Memory

__all__ = ["BatchSizeCallback", "set_batch_size"]

_QUIET: Final[Mapping[str, object]] = {
    "auto_find_batch_size": False,
    "dataloader_num_workers": 0,
    "dataloader_persistent_workers": False,
    "dataloader_prefetch_factor": None,
    "eval_on_start": False,
    "eval_strategy": "no",
    "load_best_model_at_end": False,
    "logging_first_step": False,
    "logging_strategy": "no",
    "push_to_hub": False,
    "save_strategy": "no",
    "save_total_limit": None,
    "skip_memory_metrics": True,
}
"""Arguments of trials: they write, print, evaluate and send nothing."""


def set_batch_size(
    trainer: Trainer, *, target_batch: int, headroom: float = 0.0, samples: Sequence[int] | None = None
) -> FoundSize:
    """Find the sizes of a trainer on its GPU, and set them in its arguments; call it before `train()`.

    The trials are optimizer steps of a copy of the trainer on the same model. Weights, optimizer, random numbers and
    memory are afterwards as they were; nothing is written to disk.

    Args:
        trainer: Its `args.per_device_train_batch_size` and `args.gradient_accumulation_steps` are set.
        target_batch: Samples per optimizer step.
        headroom: Part of the memory that stays free, in [0, 1).
        samples: Indices of the samples that trials train on, such as the longest; None for the first ones.

    Raises:
        UsageError: The trainer cannot be sized: its data, its target batch, several GPUs.
        TargetError: A step fails for another reason than memory.
        NoAnswerError: Not one sample fits.
    """
    _check(trainer)
    found = _find(trainer, CudaMemory(trainer.args.device), target_batch, headroom, samples)
    trainer.args.per_device_train_batch_size = found.plan.micro_batch
    trainer.args.gradient_accumulation_steps = found.plan.steps
    trainer._train_batch_size = found.plan.micro_batch  # noqa: SLF001 - what its loader is made with
    return found


class BatchSizeCallback(TrainerCallback):
    """Callback that does what `set_batch_size` does, where `train` is called for the first time.

    Args:
        target_batch: Samples per optimizer step.
        headroom: Part of the memory that stays free, in [0, 1).
        samples: Indices of the samples that trials train on, such as the longest; None for the first ones.

    Attributes:
        found: The sizes; None before `train` is called.

    Raises:
        UsageError: It was added after the trainer was made; or as `set_batch_size`.
        TargetError: As `set_batch_size`.
        NoAnswerError: As `set_batch_size`.
    """

    def __init__(self, target_batch: int, *, headroom: float = 0.0, samples: Sequence[int] | None = None) -> None:
        self._target_batch = target_batch
        self._headroom = headroom
        self._samples = samples
        self.found: FoundSize | None = None

    def on_init_end(self, args: TrainingArguments, *_: object, **__: object) -> None:
        """Have the trainer sized once it is to train; until then its model and arguments may change."""
        trainer = _trainer_of(args)
        train = trainer.train

        @wraps(train)
        def sized(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - those of `train`
            del trainer.train
            self.found = set_batch_size(
                trainer, target_batch=self._target_batch, headroom=self._headroom, samples=self._samples
            )
            return train(*args, **kwargs)

        trainer.train = sized

    def on_train_begin(self, *_: object, **__: object) -> None:
        """Refuse to train with other sizes."""
        if self.found is None:
            raise UsageError(
                "`BatchSizeCallback` was added when the trainer was made already, which has its sizes by now",
                hint="pass it to the Trainer: `callbacks=[BatchSizeCallback(target_batch=256)]`",
            )


def _trainer_of(args: TrainingArguments) -> Any:  # noqa: ANN401 - a Trainer, whose methods get replaced
    """Return the trainer that is being made with these arguments.

    Raises:
        RuntimeError: None is.
    """
    frame = sys._getframe()  # noqa: SLF001 - an event does not say whose it is
    while frame := frame.f_back:  # type: ignore[assignment]
        found = frame.f_locals.get("self")
        if isinstance(found, Trainer) and found.args is args:
            return found
    raise RuntimeError("no Trainer is being made")


def _check(trainer: object) -> None:
    if not isinstance(trainer, Trainer):
        hint = "build the Trainer first, and call this before `trainer.train()`"
        raise UsageError(f"`{trainer!r:.80}` is no `transformers.Trainer`", hint=hint)
    if trainer.args.world_size > 1 or trainer.args.n_gpu > 1:
        raise UsageError(
            f"the trainer has {max(trainer.args.world_size, trainer.args.n_gpu)} devices, and one is sized",
            hint="`oomdoctor probe --world-size N -- python train.py ...` asks for ranks of a world, and "
            "`CUDA_VISIBLE_DEVICES=0` leaves one GPU",
        )
    if trainer.train_dataset is None:
        raise UsageError("the trainer has no `train_dataset`", hint="pass `train_dataset=` to the Trainer")
    if isinstance(trainer.train_dataset, Sized) and not len(trainer.train_dataset):
        raise UsageError("the trainer's `train_dataset` has no sample", hint="give it some training data")


def _find(
    trainer: Trainer, memory: Memory, target_batch: int, headroom: float, samples: Sequence[int] | None
) -> FoundSize:
    with kept_random_state():
        indices = indices_of(trainer.get_train_dataloader(), samples)
    return find_size(
        _Training(trainer, indices),
        memory,
        target_batch=target_batch,
        samples=len(trainer.train_dataset),  # type: ignore[arg-type]
        headroom=headroom,
    )


class _Training:
    """A copy of the trainer, on batches of any size, as `oomdoctor.integrations.trainers.Trainer` says."""

    def __init__(self, trainer: Any, indices: Sequence[int]) -> None:  # noqa: ANN401 - whose types say less than is so
        self._trainer, self._indices = trainer, indices
        self.model: torch.nn.Module = trainer.model

    def roots(self) -> Sequence[object]:
        """Return what a copy shares with the trainer."""
        trainer = self._trainer
        return (trainer.model, trainer.model_wrapped, trainer.optimizer, trainer.lr_scheduler, trainer.accelerator)

    def train(self, micro_batch: int, micro_steps: int, steps: int) -> None:
        """Train a copy whose data is so many samples; what it shares is put back by whoever calls."""
        clone: Any = copy.copy(self._trainer)
        clone.args = copy.copy(self._trainer.args)
        for name, value in _QUIET.items():
            setattr(clone.args, name, value)
        clone.args.per_device_train_batch_size, clone.args.gradient_accumulation_steps = micro_batch, micro_steps
        clone.args.max_steps, clone._train_batch_size = steps, micro_batch  # noqa: SLF001 - as in `set_batch_size`
        clone.model_init, clone.state, clone.control = None, TrainerState(), TrainerControl()
        clone.callback_handler = CallbackHandler(  # type: ignore[no-untyped-call]
            [DefaultFlowCallback()], clone.model, clone.processing_class, clone.optimizer, clone.lr_scheduler
        )
        clone.train_dataset = _Cycle(self._trainer.train_dataset, self._indices, micro_batch * micro_steps * steps)
        clone._get_train_sampler = torch.utils.data.SequentialSampler  # noqa: SLF001 - no sample comes by chance
        clone.train()


class _Cycle(torch.utils.data.Dataset[Any]):
    """Samples of a data set in turn, as many as are asked for."""

    def __init__(self, dataset: Any, indices: Sequence[int], length: int) -> None:  # noqa: ANN401 - the user's
        self._dataset, self._indices, self._length = dataset, indices, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:  # noqa: ANN401 - a sample is what the user's data set gives
        return self._dataset[self._indices[index % len(self._indices)]]
