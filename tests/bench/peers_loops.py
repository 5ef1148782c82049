"""Other tools that find a batch size, each driven as its documentation shows, on the null GPU of this process.

The process imports everything once, and forks for each question: a fresh CUDA device, without the imports. Questions
are lines of JSON on stdin, answers lines of JSON on stdout.

Usage: python tests/bench/peers_loops.py, in the environment of a null GPU
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

STEPS = 3
MODULES = (
    "accelerate.utils", "batch_finder", "batch_probe", "lightning.pytorch.tuner", "toma", "torch_max_mem",
    "transformers.trainer",
)  # fmt: skip


class Training:
    """A user's training: an example, its optimizer and its precision, with every size that is tried.

    Attributes:
        tried: Sizes in the order in which they were begun.
    """

    def __init__(self, example: str, precision: str) -> None:
        self.example = importlib.import_module(f"oomdoctor.examples.{example}")
        self.is_bf16 = precision == "bf16"
        self.tried: list[int] = []

    def model(self) -> torch.nn.Module:
        """The model, on the GPU."""
        model: torch.nn.Module = self.example.build_model()
        return model.cuda()

    def optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        """The example's optimizer, or AdamW."""
        build = getattr(self.example, "build_optimizer", None)
        found: torch.optim.Optimizer = build(model) if build else torch.optim.AdamW(model.parameters())
        return found

    def batch(self, size: int) -> Any:
        """A batch, made on the GPU."""
        if not self.tried or self.tried[-1] != size:
            self.tried.append(size)
        with torch.device("cuda"):
            return self.example.make_batch(size)

    def loss(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        """The loss, under autocast where the precision is bf16."""
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=self.is_bf16):
            loss: torch.Tensor = self.example.training_step(model, batch)
        return loss

    def run(self, size: int, micro_steps: int = 1) -> None:
        """Train for three optimizer steps: a function that a decorator can call again with less."""
        model = self.model()
        optimizer = self.optimizer(model)
        for _ in range(STEPS):
            for _ in range(micro_steps):
                self.loss(model, self.batch(size)).backward()
            optimizer.step()
            optimizer.zero_grad()


class WholeStep(torch.nn.Module):
    """A model whose forward makes the loss, for tools that call the model themselves."""

    def __init__(self, training: Training) -> None:
        super().__init__()
        self.training_of, self.inner = training, training.model()

    def forward(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss of as many samples as there are rows."""
        return {"loss": self.training_of.loss(self.inner, self.training_of.batch(len(rows)))}


# --- the loops: what a user writes -----------------------------------------------------------------------------------


def lightning(training: Training, mode: str) -> int | None:
    """Tune a LightningModule with `Tuner.scale_batch_size`."""
    import lightning
    from lightning.pytorch.tuner import Tuner

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.batch_size, self.inner = 1, training.example.build_model()

        def training_step(self, rows: torch.Tensor) -> torch.Tensor:
            loss: torch.Tensor = training.example.training_step(self.inner, training.batch(len(rows)))
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return training.optimizer(self.inner)

        def train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(torch.zeros(200_000, 1), batch_size=self.batch_size)

    trainer = lightning.Trainer(
        precision="bf16-mixed" if training.is_bf16 else "32-true", accelerator="gpu", devices=1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    return Tuner(trainer).scale_batch_size(Module(), mode=mode)


def accelerate(training: Training) -> int:
    """Decorate the training with `find_executable_batch_size`, from its default of 128."""
    from accelerate.utils import find_executable_batch_size

    @find_executable_batch_size()
    def run(batch_size: int) -> int:
        training.run(batch_size)
        return batch_size

    found: int = run()
    return found


def hf_trainer(training: Training) -> int:
    """Train with `Trainer(auto_find_batch_size=True)`, from its default of 8 samples a device."""
    from transformers import Trainer, TrainingArguments

    class Own(Trainer):
        def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> torch.Tensor:
            loss: torch.Tensor = training.example.training_step(model, training.batch(len(inputs["rows"])))
            return loss

        def create_optimizer(self, *_: Any) -> torch.optim.Optimizer:
            self.optimizer = training.optimizer(self.model)
            return self.optimizer

    arguments = TrainingArguments(
        auto_find_batch_size=True, max_steps=STEPS, bf16=training.is_bf16, report_to=[], save_strategy="no",
        disable_tqdm=True, remove_unused_columns=False,
    )  # fmt: skip
    rows = [{"rows": torch.zeros(1)} for _ in range(64)]
    Own(training.example.build_model(), arguments, train_dataset=rows).train()
    return training.tried[-1]


def toma(training: Training) -> int:
    """Call the training by `toma.simple.batch`, from 512 as its documentation does."""
    from toma import simple

    def run(batchsize: int) -> int:
        training.run(batchsize)
        return batchsize

    found: int = simple.batch(run, 512)
    return found


def torch_max_mem(training: Training) -> int:
    """Decorate the training with `maximize_memory_utilization`, from 1,024."""
    from torch_max_mem import maximize_memory_utilization

    @maximize_memory_utilization()
    def run(batch_size: int) -> int:
        training.run(batch_size)
        return batch_size

    found: int = run(batch_size=1024)
    return found


def batch_probe(training: Training) -> int:
    """Ask `probe_batch_size`, which trains with an AdamW of its own and takes a fifth off."""
    from batch_probe import probe_batch_size

    return int(probe_batch_size(WholeStep(training), lambda size: {"rows": torch.zeros(size, 1, device="cuda")}))


def batch_finder(training: Training) -> int | None:
    """Ask `find_max_minibatch`, in this process and without its pause of three seconds between trials."""
    from batch_finder import find_max_minibatch

    found = find_max_minibatch(lambda: WholeStep(training), input_shapes=(-1, 1), use_subprocess=False, delay=0)
    return None if found is None else int(found[0] if isinstance(found, tuple) else found)


LOOPS: dict[str, tuple[str, Callable[[Training], int | None]]] = {
    "Lightning, power": ("lightning", lambda training: lightning(training, "power")),
    "Lightning, binsearch": ("lightning", lambda training: lightning(training, "binsearch")),
    "accelerate": ("accelerate", accelerate),
    "HF Trainer": ("transformers", hf_trainer),
    "toma": ("toma", toma),
    "torch-max-mem": ("torch-max-mem", torch_max_mem),
    "batch-probe": ("batch-probe", batch_probe),
    "batch-finder": ("batch-finder", batch_finder),
}
"""The tools: their distribution, and the loop."""


# --- questions -------------------------------------------------------------------------------------------------------


def ask(question: dict[str, Any]) -> dict[str, Any]:
    """Answer one question in this process: the answer of a tool, or whether a size fits."""
    training = Training(question["example"], question["precision"])
    if "size" in question:
        return {"fits": fits(training, question["size"], question["micro_steps"])}
    before, error, answer = resource.getrusage(resource.RUSAGE_SELF), None, None
    try:
        answer = LOOPS[question["tool"]][1](training)
    except Exception as raised:  # noqa: BLE001 - what a tool raises is its answer
        error = f"{type(raised).__name__}: {str(raised).splitlines()[0] if str(raised) else ''}"[:200]
    after = resource.getrusage(resource.RUSAGE_SELF)
    gc.collect()
    return {
        "answer": answer,
        "error": error,
        "tried": training.tried,
        "cpu_seconds": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 2),
        "left_bytes": torch.cuda.memory_reserved(),
    }


def fits(training: Training, size: int, micro_steps: int) -> bool:
    """Return whether three steps fit."""
    try:
        training.run(size, micro_steps)
    except torch.cuda.OutOfMemoryError:
        return False
    return True


def in_fork(question: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Answer one question in a fork, which is ended after so many seconds."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        signal.alarm(int(seconds))
        nowhere = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - until the process ends
        with redirect_stdout(nowhere), redirect_stderr(nowhere), TemporaryDirectory() as folder:
            os.chdir(folder)  # the tools write there
            text = json.dumps(ask(question))
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        text = pipe.read().decode()
    status = os.waitpid(pid, 0)[1]
    return json.loads(text) if text else {"answer": None, "error": f"ended with status {status}", "tried": []}


def main() -> None:
    """Import everything, and answer until stdin ends."""
    for module in MODULES:
        importlib.import_module(module)
    assert not torch.cuda.is_initialized(), "a tool has initialised CUDA, which a fork cannot use then"
    gc.freeze()
    for line in sys.stdin:
        question = json.loads(line)
        print(json.dumps(in_fork(question, question.get("seconds", 300))), flush=True)


if __name__ == "__main__":
    main()
