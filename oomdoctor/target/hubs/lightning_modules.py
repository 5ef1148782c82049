"""Files for LightningModules, with the batch of a data module, of their own loader, or of `example_input_array`."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, Final

import torch

from oomdoctor.errors import TargetError
from oomdoctor.target.contract import summary
from oomdoctor.target.hubs.generated import GeneratedTarget, called, refused
from oomdoctor.target.placement import tensors_in

if TYPE_CHECKING:
    from oomdoctor.target.reference import Reference

_FROM_LOADER: Final = """\
@functools.cache
def training_loader():
{setup}


def make_batch(batch_size):
    loader = training_loader()
    samples = [loader.dataset[index % len(loader.dataset)] for index in range(batch_size)]
    return loader.collate_fn(samples)
"""
_FROM_MODULE: Final = """\
    return build_model().train_dataloader()"""
_FROM_DATA: Final = """\
    data = {data}()
    data.prepare_data()
    data.setup("fit")
    return data.train_dataloader()"""
_FROM_EXAMPLE: Final = """\
def make_batch(batch_size):
    example = build_model().example_input_array
    return tree_map(lambda tensor: tensor[torch.arange(batch_size) % len(tensor)], example)
"""
_LIGHTNING: Final = ("lightning", "pytorch_lightning", "lightning_fabric")
"""Packages of Lightning itself, whatever it was installed as."""


def of_lightning(reference: Reference) -> GeneratedTarget:
    """Generate the file of a LightningModule of the user's; its module is imported.

    Raises:
        TargetError: There is no such class, or its batch or optimizer cannot be had outside of a `Trainer`.
    """
    keywords = dict(reference.kwargs)
    data = keywords.pop("data", None)
    if reference.directory not in sys.path:
        sys.path.insert(0, reference.directory)
    kind = _class(reference, str(reference.model))
    if not all(callable(getattr(kind, name, None)) for name in ("training_step", "configure_optimizers")):
        raise refused(reference, "it is no LightningModule: it has no `training_step` and `configure_optimizers`")
    model = _run(reference, called(kind.__name__, **keywords), lambda: kind(**keywords))
    if not getattr(model, "automatic_optimization", True):
        raise refused(reference, "it optimizes by hand, in its own `training_step`")
    imports = [f"from {kind.__module__} import {kind.__name__}"]
    if data is not None:
        owner = _class(reference, str(data))
        imports.append(f"from {owner.__module__} import {owner.__name__}")
        setup, note = _FROM_DATA.format(data=owner.__name__), f"of `{data}`, as `data` says"
        _run(reference, str(data), lambda: _check_loader(reference, _loader_of(owner())))
    elif _has_own_loader(kind):
        setup, note = _FROM_MODULE, "of its own `train_dataloader`"
        _run(reference, "train_dataloader()", lambda: _check_loader(reference, model.train_dataloader()))
    else:
        setup, note = "", "`example_input_array`, its samples repeated; `training_step` takes it"
        _check_example(reference, model)
    optimizer, optimizer_note = _optimizer(reference, model)
    choices = {
        "model": f"`{called(kind.__name__, **keywords)}` of `{kind.__module__}`",
        "batch": note,
        "loss": "what its `training_step` returns, without a `Trainer`",
        "optimizer_of_module": optimizer_note,
    }
    first = ["import functools"] if setup else ["import torch", "from torch.utils._pytree import tree_map"]
    make_batch = _FROM_LOADER.format(setup=setup) if setup else _FROM_EXAMPLE
    body = (
        "\n".join([*first, "", *imports])
        + f"""


def build_model():
    return {called(kind.__name__, **keywords)}


{make_batch}

def training_step(model, batch):
    result = model.training_step(batch, 0)
    return result["loss"] if isinstance(result, dict) else result


def build_optimizer(model):
    return {optimizer}
"""
    )
    return GeneratedTarget(reference.text, choices, body)


def _has_own_loader(kind: type[Any]) -> bool:
    """Return whether a class or one of its bases has a `train_dataloader`; Lightning's own only raises."""
    owner = next((one for one in kind.__mro__ if "train_dataloader" in vars(one)), None)
    return owner is not None and owner.__module__.partition(".")[0] not in _LIGHTNING


def _class(reference: Reference, name: str) -> type[Any]:
    """Import a class by its dotted name.

    Raises:
        TargetError: There is none.
    """
    module, _, last = name.rpartition(".")
    found = getattr(_run(reference, f"importing `{module}`", lambda: importlib.import_module(module)), last, None)
    if not isinstance(found, type):
        raise TargetError(
            f"`{module}` has no class `{last}`, which `{reference.text}` names",
            hint="name a class with its module: `lightning:package.module.Classifier`",
        )
    return found


def _run(reference: Reference, what: str, run: Any) -> Any:  # noqa: ANN401 - the user's code returns anything
    """Run a part of the user's code.

    Raises:
        TargetError: It raised something.
    """
    try:
        return run()
    except TargetError:
        raise
    except Exception as error:  # noqa: BLE001 - the user's own
        problem = summary(error)
    raise refused(reference, f"{what} raised `{problem}`")


def _loader_of(data: Any) -> Any:  # noqa: ANN401 - a data module of any class
    data.prepare_data()
    data.setup("fit")
    return data.train_dataloader()


def _check_loader(reference: Reference, loader: object) -> None:
    if not isinstance(loader, torch.utils.data.DataLoader) or not hasattr(loader.dataset, "__len__"):
        raise refused(reference, "its training data are no `DataLoader` over a data set with a length")


def _check_example(reference: Reference, model: Any) -> None:  # noqa: ANN401 - a LightningModule
    """See that `training_step` takes the example, which is the input of `forward` alone."""
    example = getattr(model, "example_input_array", None)
    if example is None or not any(tensor.dim() for tensor in tensors_in(example)):
        raise _without_data(reference, "it has no `example_input_array`, no `train_dataloader` and no `data`")
    try:
        model.training_step(example, 0)
    except Exception as error:  # noqa: BLE001 - the user's own
        problem = summary(error)
    else:
        return
    raise _without_data(reference, f"its `training_step` does not take `example_input_array` as a batch: `{problem}`")


def _without_data(reference: Reference, why: str) -> TargetError:
    return TargetError(
        f"`{reference.text}` has no batch: {why}",
        hint=f'name its data module: `{reference.location}(data="package.module.DataModule")`',
    )


def _optimizer(reference: Reference, model: Any) -> tuple[str, str]:  # noqa: ANN401 - a LightningModule
    """Return the expression of the one optimizer, and its class."""
    made = _run(reference, "`configure_optimizers()`", model.configure_optimizers)
    call = "model.configure_optimizers()"
    match made:
        case torch.optim.Optimizer():
            return call, type(made).__name__
        case {"optimizer": torch.optim.Optimizer() as one}:
            return f'{call}["optimizer"]', type(one).__name__
        case [torch.optim.Optimizer() as one]:
            return f"{call}[0]", type(one).__name__
        case [[torch.optim.Optimizer() as one], _]:
            return f"{call}[0][0]", type(one).__name__
        case [{"optimizer": torch.optim.Optimizer() as one}]:
            return f'{call}[0]["optimizer"]', type(one).__name__
    raise refused(reference, "`configure_optimizers` gives no single optimizer")
