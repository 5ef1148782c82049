"""Arguments of training frameworks, for programs that import one."""

from __future__ import annotations

import pytest

from oomdoctor.remedies.catalogue import BY_ID
from oomdoctor.remedies.trainers import FRAMEWORKS, framework_arguments


@pytest.mark.parametrize(
    ("source", "remedies", "expected"),
    [
        ("from transformers import Trainer\n", ("checkpoint", "bf16"), ["gradient_checkpointing=True,", "bf16=True,"]),
        ("if True:\n    import lightning as L\n", ("checkpoint", "bf16"), ['precision="bf16-mixed",']),
        ("from accelerate import Accelerator\n", ("fp16",), ['mixed_precision="fp16",']),
        ("from accelerate import Accelerator\n", ("checkpoint",), []),
        ("import torch  # not transformers\nimport transformers_of_mine\n", ("bf16",), []),
    ],
)
def test_a_framework_that_the_program_imports_is_told(
    source: str, remedies: tuple[str, ...], expected: list[str]
) -> None:
    """By the arguments that it has for what is prescribed; nothing of any other."""
    assert [line for _, lines in framework_arguments(source, remedies) for line in lines] == expected


def test_every_argument_is_of_a_remedy() -> None:
    """None is left over from one that was renamed."""
    assert all(name in BY_ID for framework in FRAMEWORKS for name in framework.arguments)


def test_the_installed_frameworks_have_the_arguments() -> None:
    """Each is a parameter of the class that the place names."""
    transformers = pytest.importorskip("transformers.training_args")
    for argument in FRAMEWORKS[0].arguments.values():
        name, _, value = argument.partition("=")
        assert name in transformers.TrainingArguments.__dataclass_fields__
        if name == "optim":
            assert value.split('"')[1] in {one.value for one in transformers.OptimizerNames}
