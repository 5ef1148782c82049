"""Files for models of timm and torchvision."""

from __future__ import annotations

import difflib
import inspect
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from oomdoctor.errors import TargetError
from oomdoctor.target.contract import summary
from oomdoctor.target.hubs.generated import (
    IMAGE_LOSS,
    GeneratedTarget,
    Raw,
    called,
    library,
    refused,
    whole,
    without_memory,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from oomdoctor.target.reference import Reference

_IMAGENET_CLASSES: Final = 1000
_USUAL_SIZE: Final = 224
_CLIP_FRAMES: Final = 16
_SIZE_PARAMETERS: Final = ("img_size", "image_size", "input_size")
"""Parameters by which classes of models take the size of their images; the last as a pair."""

_DENSE_LOSS: Final = """\
def training_step(model, batch):
    images, labels = batch
    outputs = model(images)
    loss = torch.nn.functional.cross_entropy(outputs["out"], labels)
    if "aux" in outputs:
        loss = loss + 0.5 * torch.nn.functional.cross_entropy(outputs["aux"], labels)
    return loss
"""
_AUXILIARY_LOSS: Final = """\
def training_step(model, batch):
    images, labels = batch
    outputs = model(images)  # the logits, and those of the auxiliary classifiers
    losses = [torch.nn.functional.cross_entropy(logits, labels) for logits in outputs]
    return losses[0] + {weight} * sum(losses[1:])
"""
_AUXILIARY: Final = {"Inception3": 0.4, "GoogLeNet": 0.3}
"""Weights of the auxiliary classifiers' losses, as the papers of these models have them."""
_REFUSED: Final = {
    "detection": "a detector's step depends on the boxes that it finds, and its batch is a list",
    "optical_flow": "its batch is pairs of images with a flow, and its loss is over a sequence of flows",
    "quantization": "a quantised model is not trained",
}


def of_timm(reference: Reference) -> GeneratedTarget:
    """Generate the file of a model of timm.

    Raises:
        NoAnswerError: timm is not installed.
        TargetError: It has no such model, or cannot build it so.
    """
    timm: Any = library("timm", reference)
    name, keywords = str(reference.model), dict(reference.kwargs)
    if not timm.is_model(name):
        raise _unknown(reference, timm.list_models())
    given = keywords.pop("image_size", None)
    model = _built(reference, partial(timm.create_model, name, pretrained=False, **keywords))
    classes, note = model.num_classes, "`num_classes` of its configuration"
    if classes == 0 and "num_classes" not in keywords:
        classes = keywords["num_classes"] = _IMAGENET_CLASSES
        note = "as ImageNet has; its weights are without a classifier"
        model = _built(reference, partial(timm.create_model, name, pretrained=False, **keywords))
    if not isinstance(model.num_classes, int) or model.num_classes < 1:
        raise refused(reference, "it has no classifier, so that there is nothing to train it by")
    if "num_classes" in reference.kwargs:
        note = "as given"
    channels, height, width = model.pretrained_cfg["input_size"]
    if "in_chans" in keywords:
        channels = whole("in_chans", keywords["in_chans"], reference)
    size, size_note = _size(reference, given, (height, width), "`input_size` of its configuration")
    parameter = _size_parameter(model) if isinstance(size, int) else None
    choices = {
        "model": f"`{type(model).__name__}` of timm {timm.__version__}; random weights, none are downloaded",
        "image_size": size_note,
        "labels": f"{classes} classes, {note}",
        "loss": "cross entropy",
    }
    call = partial(called, "timm.create_model", name, pretrained=False, **keywords)
    body = _body("timm", call, parameter, channels, size, classes, IMAGE_LOSS)
    return GeneratedTarget(reference.text, choices, body)


def of_torchvision(reference: Reference) -> GeneratedTarget:
    """Generate the file of a model of torchvision: for classification, segmentation or clips.

    Raises:
        NoAnswerError: torchvision is not installed.
        TargetError: It has no such model, or one whose batch or loss cannot be known.
    """
    library("torchvision", reference)
    models: Any = library("torchvision.models", reference)
    name, keywords = str(reference.model), dict(reference.kwargs)
    if name not in models.list_models():
        raise _unknown(reference, models.list_models())
    builder = models.get_model_builder(name)
    kind = builder.__module__.removeprefix("torchvision.models.").partition(".")[0]
    if kind in _REFUSED:
        raise refused(reference, _REFUSED[kind])
    weights = getattr(models.get_model_weights(name), "DEFAULT", None)
    crop, classes = _crop(weights), len(weights.meta["categories"]) if weights else _IMAGENET_CLASSES
    given, frames = keywords.pop("image_size", None), keywords.pop("frames", _CLIP_FRAMES)
    known = inspect.signature(builder).parameters
    keywords = {"weights": None, **({"weights_backbone": None} if "weights_backbone" in known else {}), **keywords}
    if "aux_loss" in known:
        keywords.setdefault("aux_loss", True)
    note = f"the categories of {weights}" if weights else "as ImageNet has"
    if "num_classes" in keywords:
        classes, note = whole("num_classes", keywords["num_classes"], reference), "as given"
    elif classes != _IMAGENET_CLASSES:
        keywords["num_classes"] = classes
    model = _built(reference, partial(models.get_model, name, **keywords))
    size, size_note = _size(reference, given, crop, f"of the transforms of {weights}" if weights else "as is usual")
    parameter = _size_parameter(model) if isinstance(size, int) else None
    auxiliary = _AUXILIARY.get(type(model).__name__) if getattr(model, "aux_logits", False) else None
    loss, loss_note = IMAGE_LOSS, "cross entropy"
    if kind == "segmentation":
        loss, loss_note = _DENSE_LOSS, "cross entropy of each pixel, 0.5 of the auxiliary one"
    elif auxiliary is not None:
        loss, loss_note = _AUXILIARY_LOSS.format(weight=auxiliary), f"cross entropy, {auxiliary} of the auxiliary ones"
    choices = {
        "model": f"`{type(model).__name__}` of torchvision; random weights, none are downloaded",
        "image_size": size_note,
        **({"frames": f"{frames}, a clip"} if kind == "video" else {}),
        "labels": f"{classes} classes, {note}",
        "loss": loss_note,
    }
    call = partial(called, "torchvision.models.get_model", name, **keywords)
    body = _body(
        "torchvision", call, parameter, 3, size, classes, loss,
        frames=whole("frames", frames, reference) if kind == "video" else None, is_dense=kind == "segmentation",
    )  # fmt: skip
    return GeneratedTarget(reference.text, choices, body)


def _built(reference: Reference, build: Callable[[], Any]) -> Any:  # noqa: ANN401 - a model of any library
    try:
        return without_memory(build)
    except Exception as error:  # noqa: BLE001 - the library's own
        problem = summary(error)
    raise TargetError(
        f"{reference.hub} cannot build `{reference.text}`: {problem}",
        hint=f"keywords go to its builder, such as `num_classes`; without any: `{reference.location}`",
    )


def _unknown(reference: Reference, names: Iterable[str]) -> TargetError:
    near = difflib.get_close_matches(str(reference.model).partition(".")[0], names, n=3)
    listed = " or ".join(f"`{reference.hub}:{name}`" for name in near)
    where = "timm.list_models()" if reference.hub == "timm" else "torchvision.models.list_models()"
    return TargetError(
        f"{reference.hub} has no model `{reference.model}`",
        hint=f"did you mean {listed}?" if near else f"`{where}` lists what there is",
    )


def _size(
    reference: Reference, given: object, known: tuple[int, int], source: str
) -> tuple[int | tuple[int, int], str]:
    """Return the side of an image, or height and width where they differ; with where it is from."""
    if given is not None:
        return whole("image_size", given, reference), f"{given}, as given"
    size = known[0] if known[0] == known[1] else known
    return size, f"{known[0]} x {known[1]} pixels, {source}"


def _crop(weights: Any) -> tuple[int, int]:  # noqa: ANN401 - an enumeration of torchvision
    """Return height and width that the transforms of some weights give."""
    transforms = None if weights is None else weights.transforms()
    crop = getattr(transforms, "crop_size", None) or getattr(transforms, "resize_size", None) or [_USUAL_SIZE]
    return int(crop[0]), int(crop[-1])


def _size_parameter(model: object) -> str | None:
    """Return the parameter by which the model's class takes the size of its images; None where it takes any."""
    parameters = inspect.signature(type(model).__init__).parameters
    return next((name for name in _SIZE_PARAMETERS if name in parameters), None)


def _body(  # noqa: PLR0913, PLR0917 - each is a part of the file
    package: str,
    call: Callable[..., str],
    parameter: str | None,
    channels: int,
    size: int | tuple[int, int],
    classes: int,
    loss: str,
    *,
    frames: int | None = None,
    is_dense: bool = False,
) -> str:
    """Return the imports and functions of a file for images or clips with labels."""
    sides = "image_size, image_size" if isinstance(size, int) else f"{size[0]}, {size[1]}"
    side = f"image_size={size}" if isinstance(size, int) else ""
    clip = "frames, " if frames is not None else ""
    keywords = ", ".join(part for part in (f"frames={frames}" if frames is not None else "", side) if part)
    value = Raw("image_size" if parameter != "input_size" else "(image_size, image_size)")
    sized: Mapping[str, object] = {} if parameter is None else {parameter: value}
    return f"""\
import torch
import {package}


def build_model({"" if parameter is None else f"*, {side}"}):
    return {call(**sized)}


def make_batch(batch_size{f", *, {keywords}" if keywords else ""}):
    images = torch.randn(batch_size, {channels}, {clip}{sides})
    labels = torch.randint({classes}, (batch_size,{f" {sides}" if is_dense else ""}))
    return images, labels


{loss}"""
