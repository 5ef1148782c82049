"""How a file is edited by hand for a remedy: what a worker says that it applied. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FileEdit:
    """Lines of Python for the places of a user's file.

    Attributes:
        imports: Import statements.
        top: Lines that come before the first import of torch.
        definitions: Lines for the file's end, of classes and functions.
        model: Lines for the end of `build_model`, in which `model` is the model.
        batch: Lines for the end of `make_batch`, in which `batch` is the batch.
        decorators: Decorators of `training_step`, without the `@`.
        optimizer: An expression that replaces what `build_optimizer` returns; `{optimizer}` stands for its call and
            `{parameters}` for what is trained. None to leave it.
        keywords: Keywords that are added to the optimizer's call.
        loop: Lines for the training loop, which no function of the file holds.
    """

    imports: tuple[str, ...] = ()
    top: tuple[str, ...] = ()
    definitions: tuple[str, ...] = ()
    model: tuple[str, ...] = ()
    batch: tuple[str, ...] = ()
    decorators: tuple[str, ...] = ()
    optimizer: str | None = None
    keywords: tuple[str, ...] = ()
    loop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AppliedChange:
    """A change that a worker applied to the target.

    Attributes:
        name: Its name.
        acts_on: What it acts on, in words.
        count: How many of them, such as checkpointed blocks.
        total: How many there are; at least `count`.
        edit: The same, done by hand.
        note: What to know besides; empty for nothing.
    """

    name: str
    acts_on: str
    count: int
    total: int
    edit: FileEdit
    note: str = ""
