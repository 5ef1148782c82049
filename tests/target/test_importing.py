"""How the user's file is imported, and what is said where it cannot be."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import torch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import SimpleNamespace

    from oomdoctor.target.contract import Target

    Load = Callable[..., Target]
    Refuse = Callable[..., SimpleNamespace]
    Write = Callable[..., Path]

MAIN = """
import torch

def build_model():
    return torch.nn.Linear({width}, 1)

def make_batch(batch_size):
    return None
"""


def _width(target: Target) -> Any:
    return target.build_model().in_features  # type: ignore[attr-defined]


def test_a_script_finds_the_modules_next_to_it(load: Load, write: Write, tmp_path: Path) -> None:
    """A script's directory comes first on the path, then the one that oomdoctor was started in."""
    write("scripts/own_neighbour.py", "WIDTH = 7")
    write("own_neighbour.py", "WIDTH = 8")
    write("own_elsewhere.py", "DEPTH = 9")
    write(
        "scripts/train.py",
        f"import own_neighbour, own_elsewhere\n{MAIN.format(width='own_neighbour.WIDTH')}",
    )
    assert _width(load("scripts/train.py")) == 7
    assert sys.path[:2] == [str(tmp_path / "scripts"), str(tmp_path)]


def test_a_file_in_a_package_is_imported_as_part_of_it(load: Load, write: Write, tmp_path: Path) -> None:
    """A path into a package lets the file's relative imports work."""
    write("src/own_pkg/__init__.py", "")
    write("src/own_pkg/sizes.py", "WIDTH = 11")
    write("src/own_pkg/models/__init__.py", "")
    write("src/own_pkg/models/big.py", f"from ..sizes import WIDTH\n{MAIN.format(width='WIDTH')}")
    assert _width(load("src/own_pkg/models/big.py")) == 11
    assert "own_pkg.models.big" in sys.modules
    assert sys.path[0] == str(tmp_path / "src")


def test_a_packages_own_init_file_is_the_package(load: Load, write: Write) -> None:
    """`pkg/__init__.py` is imported as `pkg`."""
    write("own_pkg/__init__.py", MAIN.format(width=3))
    assert _width(load("own_pkg/__init__.py")) == 3
    assert "own_pkg" in sys.modules
    assert "own_pkg.__init__" not in sys.modules


def test_a_module_is_imported_from_the_directory(load: Load, write: Write) -> None:
    """`pkg.mod` needs no installation."""
    write("own_pkg/mod.py", MAIN.format(width=5))
    assert _width(load("own_pkg.mod")) == 5


def test_the_shipped_example_loads(load: Load) -> None:
    """A bare example name gives a target whose functions are found."""
    target = load("gpt2:build_model(layers=1, width=8, heads=2)")
    assert target.description
    assert isinstance(target.build_model(), torch.nn.Module)


@pytest.mark.parametrize("name", ["random.py", "my-model.py", "v1.2.py", "own_pkg/v1.2.py", "own_pkg/my-model.py"])
def test_any_file_name_will_do(load: Load, write: Write, name: str) -> None:
    """A file may be called like a module of the standard library, or not like a module at all."""
    import random

    write("own_pkg/__init__.py", "")
    write(name, MAIN.format(width=6))
    assert _width(load(name)) == 6
    assert sys.modules["random"] is random


def test_a_package_that_hides_another_is_still_imported_by_its_file(load: Load, write: Write) -> None:
    """Where a package of the same name is loaded already, the file that was named is what runs."""
    write("json/__init__.py", "")
    write("json/tool.py", MAIN.format(width=13))
    assert _width(load("json/tool.py")) == 13


def test_our_arguments_are_not_the_scripts(load: Load, write: Write) -> None:
    """A script that reads its arguments when it is imported finds none, and goes on finding none."""
    path = write(
        "model.py",
        """
        import argparse, sys, torch
        parser = argparse.ArgumentParser()
        parser.add_argument("--width", type=int, default=21)
        ARGUMENTS = parser.parse_args()

        def build_model():
            return torch.nn.Linear(parser.parse_args().width, 1)

        def make_batch(batch_size):
            return torch.zeros(batch_size, 21)
        """,
    )
    assert _width(load()) == 21
    assert sys.argv == [str(path)]


def test_what_only_the_script_does_is_not_run(load: Load) -> None:
    """The lines under `if __name__ == "__main__"` stay where they are."""
    target = load(source=MAIN.format(width=2) + '\nif __name__ == "__main__":\n    raise SystemExit("trained")\n')
    assert _width(target) == 2


def test_a_syntax_error_is_shown_with_file_line_and_caret(refuse: Refuse, tmp_path: Path) -> None:
    """Python's own picture of the line is kept."""
    said = refuse(source="x = 1\ndef build_model(:\n    pass\n")
    assert said.message == "`model.py` line 2: invalid syntax"
    assert f'File "{tmp_path / "model.py"}", line 2' in said.details
    assert "def build_model(:\n                    ^" in said.details


def test_a_syntax_error_in_an_imported_file_names_that_file(refuse: Refuse, write: Write, tmp_path: Path) -> None:
    """The error is where it is, and the line that led there is shown."""
    path = write("own_helper.py", "def f(:\n")
    said = refuse(source="import own_helper\n")
    assert said.message == f"`{path}` line 1: invalid syntax"
    assert f'File "{tmp_path / "model.py"}", line 1, in <module>\n    import own_helper' in said.details


@pytest.mark.parametrize(
    ("content", "advice"),
    [(b"x = '\xff'\n", "`# coding: latin-1`"), (b"x = 1\0\n", "saved as UTF-16"), (b"x = (\n", "correct the line")],
)
def test_a_file_that_python_cannot_read_is_refused_with_what_to_do(
    refuse: Refuse, tmp_path: Path, content: bytes, advice: str
) -> None:
    """Bytes that are no text, or no Python, are the file's fault, and each has its remedy."""
    (tmp_path / "model.py").write_bytes(content)
    said = refuse()
    assert "model.py" in said.message
    assert advice in said.hint


def test_a_module_that_is_not_there_is_named(refuse: Refuse, write: Write, tmp_path: Path) -> None:
    """A missing submodule is told apart from an import error inside a module."""
    write("own_pkg/__init__.py", "def build_model(): ...")
    said = refuse("own_pkg.missing")
    assert said.message == "there is no module `own_pkg.missing`, which `own_pkg.missing` names"
    assert str(tmp_path) in said.hint
    assert not said.details


def test_a_function_named_with_a_dot_is_put_right(refuse: Refuse, write: Write) -> None:
    """`module.function` is a slip for `module:function`."""
    write("own_mod.py", "def build_model(): ...")
    assert "write `own_mod:build_model`" in refuse("own_mod.build_model").hint


def test_an_import_error_inside_the_file_is_shown_as_it_is(refuse: Refuse, tmp_path: Path) -> None:
    """The user's own line is what the traceback shows, and the interpreter is named that lacks the package."""
    said = refuse(source="import torch\nimport nosuchattention.kernels\n")
    assert said.message == "importing `model.py` raised `ModuleNotFoundError: No module named 'nosuchattention'`"
    assert said.details.splitlines()[:3] == [
        "Traceback (most recent call last):",
        f'  File "{tmp_path / "model.py"}", line 2, in <module>',
        "    import nosuchattention.kernels",
    ]
    assert "importlib" not in said.details
    assert sys.executable in said.hint


def test_a_module_that_imports_its_own_missing_part_is_not_called_missing(refuse: Refuse, write: Write) -> None:
    """The error of a line in the user's package is theirs, even where it names the target."""
    write("own_pkg/__init__.py", "import own_pkg.mod\n")
    said = refuse("own_pkg.mod")
    assert said.message.startswith("importing `own_pkg.mod` raised `ModuleNotFoundError")
    assert "import own_pkg.mod" in said.details


def test_a_circular_import_is_shown(refuse: Refuse, write: Write) -> None:
    """Two modules that need each other give Python's message and both lines."""
    write("own_other.py", "from own_cycle import x\n")
    write("own_cycle.py", "from own_other import y\nx = 1\n")
    said = refuse("own_cycle")
    assert "partially initialized module 'own_cycle'" in said.message
    assert "from own_cycle import x" in said.details


def test_a_relative_import_outside_of_a_package_is_explained(refuse: Refuse) -> None:
    """A file that is part of a package in spirit only is told what is missing."""
    assert "`__init__.py`" in refuse(source="from .layers import Block\n").hint


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("raise SystemExit(3)", "importing `model.py` called exit with 3"),
        ("import sys; sys.exit('done')", "importing `model.py` called exit with 'done'"),
        ("exit()", "importing `model.py` called exit with None"),
        ("raise KeyboardInterrupt", "importing `model.py` raised `KeyboardInterrupt`"),
    ],
)
def test_a_file_that_exits_is_told_so(refuse: Refuse, line: str, message: str) -> None:
    """An exit during the import ends neither us nor the explanation."""
    said = refuse(source=f"{line}\n")
    assert said.message == message
    assert '`if __name__ == "__main__":`' in said.hint
    assert line in said.details


def test_a_script_with_required_arguments_is_told_that_it_gets_none(refuse: Refuse) -> None:
    """Argparse exits, and the hint says why it had to."""
    said = refuse(
        source="""
        import argparse
        parser = argparse.ArgumentParser()
        parser.add_argument("--data", required=True)
        parser.parse_args()
        """
    )
    assert said.message == "importing `model.py` called exit with 2"
    assert "without arguments" in said.hint
    assert "parser.parse_args()" in said.details


def test_any_other_error_is_shown_with_the_users_lines(refuse: Refuse) -> None:
    """What the file raises is shown, whatever it derives from."""
    said = refuse(source="class Odd(BaseException): ...\ndef f():\n    raise Odd('no data')\nf()\n")
    assert said.message == "importing `model.py` raised `model.Odd: no data`"
    assert "raise Odd('no data')" in said.details


def test_a_failed_import_leaves_no_tensor_alive(refuse: Refuse) -> None:
    """The frames of the failed import are let go with what they held."""
    sys.modules["own_kept"] = kept = ModuleType("own_kept")
    refuse(
        source="""
        import torch, weakref, own_kept
        def f():
            big = torch.zeros(9)
            own_kept.ref = weakref.ref(big)
            raise ValueError
        f()
        """
    )
    assert kept.ref() is None


def test_a_target_can_be_loaded_again(load: Load) -> None:
    """A second load reads the file anew."""
    assert _width(load(source=MAIN.format(width=2))) == 2
    assert _width(load(source=MAIN.format(width=30))) == 30
