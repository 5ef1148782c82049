"""Files for models that a library knows by name: generated from the model's own configuration, in a child process.

What a library is asked for may run any of its code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oomdoctor.target.hubs.images import of_timm, of_torchvision
from oomdoctor.target.hubs.lightning_modules import of_lightning
from oomdoctor.target.hubs.transformers_models import of_transformers

if TYPE_CHECKING:
    from oomdoctor.target.hubs.generated import GeneratedTarget
    from oomdoctor.target.reference import Reference


def generate(reference: Reference) -> GeneratedTarget:
    """Generate the file that a shorthand stands for.

    Args:
        reference: A target with a hub.

    Raises:
        NoAnswerError: The library is not installed, or the configuration cannot be had.
        TargetError: There is no such model, or none whose batch and loss can be known.
    """
    makers = {"timm": of_timm, "torchvision": of_torchvision, "hf": of_transformers, "lightning": of_lightning}
    return makers[str(reference.hub)](reference)
