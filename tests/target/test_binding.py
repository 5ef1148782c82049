"""Which functions are found in the user's file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from oomdoctor.target.contract import describe
from oomdoctor.target.placement import default_training_step

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import SimpleNamespace

    from oomdoctor.target.contract import Target

    Load = Callable[..., Target]
    Refuse = Callable[..., SimpleNamespace]
    Write = Callable[..., Path]

BATCH = "\n\ndef make_batch(batch_size):\n    return batch_size\n"


def test_all_four_functions_are_found_with_their_lines(load: Load) -> None:
    """`--dry-run` can say where each function is."""
    target = load(
        "model.py:build_model(width=5)",
        source='''\
        """A small net.

        More."""
        import torch
        def build_model(width=4):
            return torch.nn.Linear(3, width)
        def make_batch(batch_size): return torch.zeros(batch_size, 3)
        def training_step(model, batch): return model(batch).mean()
        def build_optimizer(model): return torch.optim.SGD(model.parameters())
        ''',
    )
    assert target.name == "model.py:build_model(width=5)"
    assert target.description == "A small net."
    assert target.training_step is not default_training_step
    assert target.build_optimizer is not None
    assert describe(target) == {
        "build_model": "`build_model(width=5)` at model.py:5",
        "make_batch": "`make_batch` at model.py:7",
        "training_step": "`training_step` at model.py:8",
        "build_optimizer": "`build_optimizer` at model.py:9",
    }


def test_what_is_not_defined_has_a_default_that_is_told(load: Load) -> None:
    """The optional functions may be left out, and what stands in is said."""
    target = load(source=f"def build_model(): ...{BATCH}")
    assert target.training_step is default_training_step
    assert target.build_optimizer is None
    assert describe(target)["training_step"].startswith("default: the model is called on the batch")
    assert "AdamW" in describe(target)["build_optimizer"]


def test_the_reference_says_what_builds_the_model(load: Load) -> None:
    """Any function, class or attribute of a class can build it, with the arguments of the reference."""
    source = """
        import torch
        class Net(torch.nn.Linear):
            def __init__(self, width=4):
                super().__init__(3, width)
            @classmethod
            def wide(cls):
                return cls(width=100)
        def make_batch(batch_size):
            return batch_size
    """
    model = load("model.py:Net(width=6)", source=source).build_model()
    assert isinstance(model, torch.nn.Linear)
    assert model.out_features == 6
    wide = load("model.py:Net.wide", source=source)
    assert describe(wide)["build_model"].startswith("`Net.wide()` at model.py:")


def test_functions_that_come_from_another_file_count(load: Load, write: Write) -> None:
    """A function that the file imports is the file's, and is told where it is written."""
    write("own_data.py", "import torch\n\ndef make_batch(batch_size):\n    return torch.zeros(batch_size)\n")
    target = load(source="from own_data import make_batch\ndef build_model(): ...\n")
    assert describe(target)["make_batch"] == "`make_batch` at own_data.py:3"


def test_a_missing_make_batch_is_answered_with_the_lines_to_add(refuse: Refuse) -> None:
    """What was looked for, what there is, and what to write."""
    said = refuse(source="def build_model(): ...\ndef train(): ...\ndef _private(): ...\n")
    assert said.message == "`model.py` has no `make_batch`"
    assert said.details.startswith("looked for `build_model()` and `make_batch(batch_size)`; ")
    assert "the file has `build_model`, `train`" in said.details
    assert "_private" not in said.details
    assert "    import torch\n\n    def make_batch(batch_size):" in said.hint
    assert "def training_step(model, batch):" in said.hint
    assert "def build_model" not in said.hint


def test_the_lines_for_build_model_use_the_files_own_class(refuse: Refuse) -> None:
    """The template names the last module class, with a place for arguments that it needs."""
    net = (
        "import torch\nclass Block(torch.nn.Module): ...\nclass Net(torch.nn.Module):\n    def __init__(self{}): ...\n"
    )
    said = refuse(source=net.format("") + BATCH)
    assert said.message == "`model.py` has no `build_model`"
    assert "        return Net()" in said.hint
    assert "import torch" not in said.hint
    assert "        return Net()" in refuse(source=f"{net.format('')}from torch.nn import Linear\n{BATCH}").hint
    assert "        return Net(...)" in refuse(source=net.format(", width") + BATCH).hint


def test_an_empty_file_is_told_of_both_functions(refuse: Refuse) -> None:
    """One answer is enough for all that is missing, and its lines make a file that loads."""
    said = refuse(source="")
    assert said.message == "`model.py` has no `build_model` and no `make_batch`"
    assert "the file defines no public function or class" in said.details
    assert "return MyModel()" in said.hint


def test_the_template_is_a_target_that_loads(load: Load, refuse: Refuse) -> None:
    """The lines to add are true: a file of them keeps the contract."""
    hint = refuse(source="").hint
    lines = "\n".join(line[4:] for line in hint.splitlines() if line.startswith("    "))
    net = "class MyModel(torch.nn.Module):\n    def forward(self, x): return x[:, 0, 0, :1] * torch.ones(1, 1000)\n"
    target = load(source=f"{lines}\n{net}")
    model = target.build_model()
    assert isinstance(model, torch.nn.Module)
    assert target.training_step(model, target.make_batch(2)).dim() == 0


def test_a_builder_of_another_name_is_offered(refuse: Refuse) -> None:
    """A function that probably builds the model can be named in the reference."""
    assert "name it: `model.py:create_model`" in refuse(source=f"def create_model(): ...{BATCH}").hint


def test_a_missing_attribute_is_answered_with_the_nearest(refuse: Refuse) -> None:
    """A slip in the function's name is put right, and what there is is listed."""
    said = refuse("model.py:build_modle", source=f"def build_model(): ...{BATCH}")
    assert said.message == "`model.py` has no `build_modle`"
    assert said.hint == "did you mean `build_model`? the file has `build_model`, `make_batch`"


def test_a_long_list_of_functions_is_cut(refuse: Refuse) -> None:
    """A file full of functions does not fill the screen."""
    source = "".join(f"def function_{index}(): ...\n" for index in range(40))
    assert "and 28 more" in refuse(source=source).details


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("build_model = 3", "an int"),
        ("build_model = {'a': 1}", "a dict with the keys `a`"),
        ("make_batch = [1]", "a list of 1"),
    ],
)
def test_a_name_that_is_no_function_is_refused(refuse: Refuse, line: str, what: str) -> None:
    """Only what can be called can be asked."""
    name = line.split(maxsplit=1)[0]
    said = refuse(source=f"def build_model(): ...{BATCH}\n{line}\n")
    assert said.message == f"`{name}` in `model.py` is {what}, not a function"


def test_a_model_in_place_of_a_function_gets_the_lines_that_wrap_it(refuse: Refuse) -> None:
    """A module instance can be called, but not as a builder."""
    said = refuse("model.py:net", source=f"import torch\nnet = torch.nn.Linear(1, 1){BATCH}")
    assert said.message == "`net` in `model.py` is a Linear, not a function"
    assert "    def build_model():\n        return net" in said.hint


def test_arguments_that_do_not_fit_are_refused_before_the_call(refuse: Refuse) -> None:
    """An unknown keyword is answered with the one that was meant."""
    source = f"def build_model(depth: int, width: int = 4) -> None: raise ValueError{BATCH}"
    said = refuse("model.py:build_model(depht=3)", source=source)
    assert said.message.startswith("`model.py:build_model(depht=3)` cannot be called so: ")
    assert said.hint == "did you mean `depth`? its parameters are `(depth, width=4)`"
    assert "missing a required argument: 'depth'" in refuse(source=source).message


@pytest.mark.parametrize(
    ("definition", "call"),
    [
        ("def make_batch(): ...", "make_batch(batch_size)"),
        ("def training_step(batch): ...", "training_step(model, batch)"),
        ("def build_optimizer(): ...", "build_optimizer(model)"),
    ],
)
def test_a_function_that_cannot_take_our_arguments_is_refused(refuse: Refuse, definition: str, call: str) -> None:
    """Each function is held to the arguments that it will get."""
    said = refuse(source=f"def build_model(): ...{BATCH}\n{definition}\n")
    assert said.message.startswith(f"`{call}` cannot be called so: ")


def test_a_function_without_a_signature_is_taken(load: Load) -> None:
    """What Python cannot describe is left to the call itself, and its place stays unknown."""
    target = load("model.py:build", source=f"build = dict{BATCH}")
    assert describe(target)["build_model"] == "`build()`"
