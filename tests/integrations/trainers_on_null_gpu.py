"""Size trainers on a null GPU, and on the CPU with a model that refuses larger batches; print what came of each.

One process does all, since importing torch, Lightning and transformers takes longer than any of it.
"""

from __future__ import annotations

import contextlib
import gc
import json
import runpy
import sys
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from trainer_lightning import Classifier, Data, trainer
from trainer_models import TARGETS, Samples, build
from transformers import Trainer, TrainingArguments

from oomdoctor.errors import OomdoctorError
from oomdoctor.integrations import lightning, transformers
from oomdoctor.integrations.trainer_memory import Usage
from oomdoctor.integrations.trainers import FoundSize

LIMIT = 5  # samples that the model on the CPU takes


def held() -> tuple[int, int]:
    """Bytes that PyTorch has in tensors and holds, both."""
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()


class Watched(lightning.BatchSizeFinder):
    """The finder, which notes memory before and after."""

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Size, between two looks at memory."""
        self.before = held()
        super().on_fit_start(trainer, pl_module)
        self.after = held()


def figures(found: FoundSize | None, before: Any, after: Any, sizes: Any, steps: int) -> dict[str, Any]:
    """What a test reads of a sizing."""
    assert found is not None
    plan = (found.plan.micro_batch, found.plan.steps, found.plan.effective_batch)
    return {
        "maximum": found.maximum, "plan": plan, "before": before, "after": after, "sizes": sizes, "steps": steps,
        "tried": [(trial.micro_batch, trial.outcome) for trial in found.trials],
    }  # fmt: skip


def size_lightning(name: str, share: float = 1.0) -> dict[str, Any]:
    """Size and train a model with Lightning in a share of the null GPU."""
    torch.cuda.set_per_process_memory_fraction(share)
    finder, data, model = Watched(TARGETS[name]), Data(name, length=TARGETS[name]), Classifier(name)
    fit = trainer(callbacks=[finder], max_steps=1, accelerator="gpu")
    fit.fit(model, datamodule=data)
    sizes = (data.batch_size, fit.accumulate_grad_batches)
    assert model.seen == fit.accumulate_grad_batches
    torch.cuda.set_per_process_memory_fraction(1.0)
    return figures(finder.found, finder.before, finder.after, sizes, fit.global_step)


def make_trainer(model: Any, data: Any, callbacks: list[Any] | None = None, **options: Any) -> Trainer:
    """A Trainer that writes nothing."""
    quiet = {"save_strategy": "no", "report_to": "none", "disable_tqdm": True, "optim": "adamw_torch"}
    args = TrainingArguments("out", **{**quiet, **options})
    return Trainer(model=model, args=args, train_dataset=data, callbacks=callbacks)


def size_transformers(name: str) -> dict[str, Any]:
    """Size and train a model with transformers on the null GPU."""
    hf = make_trainer(build(name), Samples(name, TARGETS[name]), max_steps=1, logging_strategy="no")
    before = held()
    found = transformers.set_batch_size(hf, target_batch=TARGETS[name])
    after = held()
    hf.train()
    sizes = (hf.args.per_device_train_batch_size, hf.args.gradient_accumulation_steps)
    return figures(found, before, after, sizes, hf.state.global_step)


class HostMemory:
    """Memory that nobody measures: a model that refuses a size stands in for its end."""

    def capacity_bytes(self) -> int:
        """More than any trial measures."""
        return 1 << 30

    def begin(self, allowed_bytes: int) -> None:
        """Nothing begins."""

    def recording(self, _: list[int]) -> Any:
        """Nothing is recorded."""
        return contextlib.nullcontext()

    def measured(self) -> Usage:
        """The same for every size, so that the search bisects."""
        return Usage(allocated=1 << 20, peak_allocated=1 << 24, peak_reserved=1 << 24)

    def end(self, model: torch.nn.Module) -> None:
        """Nothing is held."""


def refuse(_: Any, args: Any, kwargs: Any) -> None:
    """Run out of memory where a batch has too many samples."""
    if len(args[0] if args else kwargs["input_ids"]) > LIMIT:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def losses_of_lightning(callbacks: list[Any], sizes: tuple[int, int] = (2, 1)) -> tuple[Any, ...]:
    """Losses, weights and sizes of a training on the CPU."""
    pl.seed_everything(1, verbose=False)
    data, model = Data("mlp", sizes[0], 64), Classifier("mlp")
    model.network.register_forward_pre_hook(refuse, with_kwargs=True)
    fit = trainer(accelerator="cpu", max_epochs=1, callbacks=callbacks, accumulate_grad_batches=sizes[1])
    fit.fit(model, datamodule=data)
    weights = [float(each.double().sum()) for each in model.parameters()]
    return model.losses, weights, model.seen, fit.lr_scheduler_configs[0].scheduler.get_last_lr(), fit.global_step


def losses_of_transformers(sizes: tuple[int, int] | None, callbacks: list[Any] | None = None) -> tuple[Any, ...]:
    """Losses and weights of a training on the CPU; sized where no sizes are given, by a callback where there is one."""
    pl.seed_everything(1, verbose=False)
    model = build("gpt2")
    model.register_forward_pre_hook(refuse, with_kwargs=True)
    micro_batch, steps = sizes or (2, 1)
    options: dict[str, Any] = {"per_device_train_batch_size": micro_batch, "gradient_accumulation_steps": steps}
    options |= {"use_cpu": True, "num_train_epochs": 1, "logging_steps": 1}
    hf = make_trainer(model, Samples("gpt2", 64), callbacks, **options)
    if sizes is None and not callbacks:
        transformers.set_batch_size(hf, target_batch=20)
    hf.train()
    weights = [float(each.double().sum()) for each in model.parameters()]
    return [
        (each.get("loss"), each.get("grad_norm"), each.get("learning_rate")) for each in hf.state.log_history
    ], weights


def on_host() -> dict[str, Any]:
    """Trainings after sizing beside trainings with the sizes given by hand."""
    for module in (lightning, transformers):
        module.CudaMemory = lambda _: HostMemory()  # type: ignore[attr-defined]
    by_hand = losses_of_transformers((5, 4))
    return {
        "lightning": [losses_of_lightning([lightning.BatchSizeFinder(20)]), losses_of_lightning([], (5, 4))],
        "transformers": [losses_of_transformers(None), by_hand],
        "callback": [losses_of_transformers(None, [transformers.BatchSizeCallback(20)]), by_hand],
    }


class Deaf(Classifier):
    """A model whose loader does not heed its batch size."""

    batch_size = 1

    def train_dataloader(self) -> Any:
        """Batches of three."""
        return torch.utils.data.DataLoader(Samples("mlp", 64), batch_size=3)


class Endless(torch.utils.data.IterableDataset[Any]):
    """Samples without a number."""

    def __iter__(self) -> Any:
        return iter(())


def fit_on_gpu(model: Any, *data: Any, target_batch: int = 8, **options: Any) -> None:
    """Size a model with Lightning."""
    fit = trainer(callbacks=[lightning.BatchSizeFinder(target_batch, **options)], max_steps=1, accelerator="gpu")
    fit.fit(model, *data)


def mistakes() -> dict[str, Any]:
    """What each wrong use is answered with."""
    loader = torch.utils.data.DataLoader(Samples("mlp", 64), batch_size=3)

    def on_trainer(data: Any, **options: Any) -> Any:
        return lambda: transformers.set_batch_size(make_trainer(build("gpt2"), data), **options)

    def iterable() -> None:
        transformers.set_batch_size(make_trainer(build("gpt2"), Endless(), max_steps=1), target_batch=8)

    def broken() -> None:
        model = build("mlp")
        model.register_forward_pre_hook(lambda *_: 1 // 0)
        classifier = Classifier("mlp")
        classifier.network = model
        data = Data("mlp", length=64)
        fit = trainer(callbacks=[lightning.BatchSizeFinder(8)], max_steps=1, accelerator="gpu")
        fit.fit(classifier, datamodule=data)

    uses = {
        "no attribute": lambda: fit_on_gpu(Deaf("mlp"), batch_arg_name="size"),
        "deaf loader": lambda: fit_on_gpu(Deaf("mlp")),
        "loader of fit": lambda: fit_on_gpu(Deaf("mlp"), loader),
        "no target": lambda: fit_on_gpu(Deaf("mlp"), target_batch=0),
        "large target": on_trainer(Samples("gpt2", 64), target_batch=65),
        "no sampler": iterable,
        "no data": on_trainer(None, target_batch=8),
        "no samples": on_trainer(Samples("gpt2", 0), target_batch=8),
        "no trainer": lambda: transformers.set_batch_size("trainer", target_batch=8),  # type: ignore[arg-type]
        "broken step": broken,
        "no divisor": _prime,
        "late callback": _late,
        "cpu": lambda: transformers.set_batch_size(
            make_trainer(build("gpt2"), Samples("gpt2", 64), use_cpu=True), target_batch=8
        ),
    }
    return {name: answer_to(use) for name, use in uses.items()}


def _prime() -> None:
    model = build("gpt2")
    model.register_forward_pre_hook(refuse, with_kwargs=True)
    transformers.set_batch_size(make_trainer(model, Samples("gpt2", 64)), target_batch=23)


def _late() -> None:
    hf = make_trainer(build("gpt2"), Samples("gpt2", 64), max_steps=1)
    hf.add_callback(transformers.BatchSizeCallback(8))
    hf.train()


def answer_to(use: Any) -> tuple[str, str, str | None]:
    """The error of a wrong use, and its hint."""
    try:
        use()
    except OomdoctorError as error:
        return type(error).__name__, error.message, error.hint
    return "none", "", None


def examples(paths: list[str]) -> list[str]:
    """What the examples of the documentation print."""
    printed = []
    for path in paths:
        with contextlib.redirect_stdout(Path(path).with_suffix(".txt").open("w+")) as file:
            runpy.run_path(path)
            file.seek(0)
            printed.append(file.read().splitlines()[-1])
    return printed


if __name__ == "__main__":
    gc.collect()
    gc.freeze()  # the libraries have two million objects, which the collection after each trial would go through
    with contextlib.redirect_stdout(sys.stderr):
        answer = {
            "mlp": size_lightning("mlp", 240 / 1024),
            "encoder": size_lightning("encoder"),
            "resnet": size_lightning("resnet"),
            "gpt2": size_transformers("gpt2"),
            "examples": examples(sys.argv[1:]),
            "mistakes": mistakes(),
            "host": on_host(),
        }
    json.dump(answer, sys.stdout)
