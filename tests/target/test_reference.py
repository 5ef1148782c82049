"""How targets are named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from oomdoctor.errors import EXIT_USAGE, TargetError
from oomdoctor.target.reference import Reference, example_names, parse_reference

Write = Callable[..., Path]


def _refused(text: str, directory: Path) -> TargetError:
    with pytest.raises(TargetError) as caught:
        parse_reference(text, directory=directory)
    assert caught.value.exit_code == EXIT_USAGE
    assert caught.value.hint
    return caught.value


def test_a_path_alone_names_a_file_and_no_function(write: Write, tmp_path: Path) -> None:
    """`path.py` is the file, with `build_model` understood."""
    path = write("model.py")
    reference = parse_reference("model.py", directory=tmp_path)
    assert reference == Reference("model.py", str(tmp_path), "model.py", path=str(path))
    assert reference.call == "build_model()"


def test_a_name_and_literal_arguments_follow_the_colon(write: Write, tmp_path: Path) -> None:
    """`path/to/file.py:name(...)` gives name, positional and keyword arguments."""
    path = write("path/to/file.py")
    reference = parse_reference("path/to/file.py:build(12, norm='a:b(', sizes=[1, -2])", directory=tmp_path)
    assert (reference.path, reference.attribute) == (str(path), "build")
    assert reference.args == (12,)
    assert reference.kwargs == {"norm": "a:b(", "sizes": [1, -2]}
    assert reference.call == "build(12, norm='a:b(', sizes=[1, -2])"


def test_a_string_that_python_warns_about_is_still_a_string(write: Write, tmp_path: Path) -> None:
    """A backslash in an argument is taken as Python takes it, without a word."""
    write("model.py")
    assert parse_reference(r"model.py:build('\d')", directory=tmp_path).args == (r"\d",)


def test_a_dotted_name_is_a_module(write: Write, tmp_path: Path) -> None:
    """`pkg.mod:name` is a module of the directory, which need not be on `sys.path` yet."""
    write("pkg/__init__.py", "")
    write("pkg/mod.py")
    reference = parse_reference("pkg.mod:name", directory=tmp_path)
    assert (reference.path, reference.module, reference.attribute) == (None, "pkg.mod", "name")


def test_a_bare_example_name_is_the_shipped_module(tmp_path: Path) -> None:
    """`gpt2` needs no file."""
    assert "gpt2" in example_names()
    reference = parse_reference("gpt2:build_model(layers=24)", directory=tmp_path)
    assert reference.module == "oomdoctor.examples.gpt2"
    assert reference.kwargs == {"layers": 24}


@pytest.mark.parametrize("name", ["gpt2.py", "gpt2/__init__.py"])
def test_a_file_or_package_of_the_directory_wins_over_an_example(write: Write, tmp_path: Path, name: str) -> None:
    """A person's own `gpt2` is meant before the shipped one."""
    write(name)
    assert parse_reference("gpt2", directory=tmp_path).module == "gpt2"


def test_a_directory_of_data_does_not_hide_an_example(tmp_path: Path) -> None:
    """A directory `gpt2` with weights in it is no module."""
    (tmp_path / "gpt2").mkdir()
    assert parse_reference("gpt2", directory=tmp_path).module == "oomdoctor.examples.gpt2"


def test_an_installed_module_is_accepted(tmp_path: Path) -> None:
    """A module need not be in the directory."""
    assert parse_reference("json.tool:main", directory=tmp_path).module == "json.tool"


@pytest.mark.parametrize(
    ("text", "location"),
    [
        (r"C:\work\model.py", r"C:\work\model.py"),
        (r"C:\work\model.py:build(depth=2)", r"C:\work\model.py"),
        ("C:/work/model.py:build", "C:/work/model.py"),
        ("C:model.py:build", "C:model.py"),
        ("C:model.py", "C:model.py"),
    ],
)
def test_a_drive_letter_is_part_of_the_path(tmp_path: Path, text: str, location: str) -> None:
    """The colon of a Windows drive does not cut the path."""
    error = _refused(text, tmp_path)
    assert error.message.startswith(f"no such file: `{location}`")


@pytest.mark.parametrize("name", ["odd:name.py", "with space (1).py", "ünï.py", "a.b.py"])
def test_a_file_that_exists_is_found_whatever_its_name(write: Write, tmp_path: Path, name: str) -> None:
    """An existing file is taken as it is named."""
    path = write(name)
    assert parse_reference(name, directory=tmp_path).path == str(path)
    assert parse_reference(f"{name}:f(1)", directory=tmp_path).args == (1,)


def test_an_absolute_path_and_one_with_dots_are_one_file(write: Write, tmp_path: Path) -> None:
    """Paths are kept absolute and plain."""
    path = write("sub/model.py")
    assert parse_reference(str(path), directory=Path("/")).path == str(path)
    assert parse_reference("../sub/model.py", directory=tmp_path / "sub").path == os.path.realpath(path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        ":build",
        "model.py:",
        "model.py:build(",
        "model.py:build)",
        "model.py(3)",
        "model.py:build-model",
        "a b",
    ],
)
def test_a_bad_form_is_answered_with_two_good_ones(tmp_path: Path, text: str) -> None:
    """What cannot be read as a target shows how one looks."""
    error = _refused(text, tmp_path)
    assert error.hint is not None
    assert "`model.py`" in error.hint
    assert "`model.py:build_model(depth=24)`" in error.hint


def test_a_parenthesis_that_is_not_closed_is_named(tmp_path: Path) -> None:
    """A call that the shell or a slip cut short is told from a name that is none."""
    assert _refused("model.py:build(depth=2", tmp_path).message.endswith("does not name a target: a `)` is missing")


def test_a_missing_file_is_answered_with_the_nearest(write: Write, tmp_path: Path) -> None:
    """A slip in a file's name is put right."""
    write("train.py")
    write("models/resnet.py")
    assert _refused("trian.py", tmp_path).hint == "did you mean `train.py`?"
    assert _refused("models/resnett.py", tmp_path).hint == "did you mean `models/resnet.py`?"
    assert _refused("resnet.py", tmp_path).hint == "did you mean `models/resnet.py`?"
    assert _refused("train/", tmp_path).message.startswith("no such file: `train/` in ")
    assert _refused("gtp2", tmp_path).hint == "did you mean `gpt2`?"
    write("unet.py")
    assert "did you mean" not in str(_refused("nofile.py", tmp_path).hint)


def test_a_directory_is_answered_with_the_files_in_it(write: Write, tmp_path: Path) -> None:
    """A directory is not a target, but the files in it may be."""
    write("models/a.py")
    write("models/b.py")
    for text in ("models", "models/"):
        error = _refused(text, tmp_path)
        assert error.message == f"`{text}` is a directory, not a Python file"
        assert error.hint == "name a file in it: `models/a.py` and `models/b.py`"


def test_a_file_of_another_kind_is_refused(write: Write, tmp_path: Path) -> None:
    """Only Python files are targets; a notebook's reader is told how to make one."""
    write("config.yaml", "a: 1")
    write("dir/run.ipynb", "{}")
    assert _refused("config.yaml", tmp_path).message == "`config.yaml` is not a Python file"
    assert "nbconvert" in (_refused("dir/run.ipynb", tmp_path).hint or "")
    os.mkfifo(tmp_path / "pipe.py")
    assert _refused("pipe.py", tmp_path).message == "`pipe.py` is not a regular file"


def test_a_missing_module_is_named_with_where_it_was_looked_for(tmp_path: Path) -> None:
    """A module that is nowhere is known to be so before anything is imported."""
    error = _refused("nosuchpackage.mod:f", tmp_path)
    assert error.message.startswith(f"there is no module `nosuchpackage` in `{tmp_path}`")
    assert "`gpt2`" in (error.hint or "")
    _refused("__main__", tmp_path)


@pytest.mark.parametrize("arguments", ["x", "open('f')", "[y for y in z]", "a=b", "{[]: 1}", "1 + 'a'", "f'{1}'"])
def test_arguments_that_are_not_literals_are_refused(write: Write, tmp_path: Path, arguments: str) -> None:
    """Nothing in an argument is ever run."""
    write("model.py")
    error = _refused(f"model.py:build({arguments})", tmp_path)
    assert error.message == f"the arguments of `build({arguments})` are not all literals"


@pytest.mark.parametrize("arguments", ["1,,", "1)(2", "a=1, a=2", "**{'a': 1}", "1 2", "(" * 300 + ")" * 300, "'"])
def test_arguments_that_are_no_call_are_refused(write: Write, tmp_path: Path, arguments: str) -> None:
    """What is not the inside of one call says so."""
    write("model.py")
    assert _refused(f"model.py:build({arguments})", tmp_path).message.startswith("the arguments of `build(")


_NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True).filter(lambda name: name not in {"as", "if", "in", "is"})
_ATOMS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.binary()
)
_LITERALS = st.recursive(
    _ATOMS,
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(args=st.lists(_LITERALS, max_size=3), kwargs=st.dictionaries(_NAMES.map("k_{}".format), _LITERALS, max_size=3))
def test_literal_arguments_come_back_as_they_were_written(args: list[object], kwargs: dict[str, object]) -> None:
    """Every literal survives the reference and its way through JSON."""
    source = ", ".join([*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())])
    reference = parse_reference(f"{__file__}:build({source})", directory=Path("/"))
    travelled = Reference(**json.loads(json.dumps(asdict(reference))))
    assert travelled == reference
    assert travelled.args == tuple(args)
    assert travelled.kwargs == kwargs


@given(text=st.text() | st.text(alphabet="ab.:/\\()[]{},='\"0 \n*\x00#") | st.text().map("model.py:f({})".format))
@example("a" * 5000 + ".py")
@example("\ud800.py")
@example("gpt2:f(" + "9" * 5000 + ")")
@example("gpt2:f(" + "-" * 100_000 + "1)")
@example("gpt2:f('\\d')")
def test_any_text_is_a_reference_or_a_target_error(text: str) -> None:
    """No text makes the parser fail in another way."""
    try:
        reference = parse_reference(text, directory=Path(__file__).parent)
    except TargetError:
        return
    assert (reference.path is None) != (reference.module is None)
    assert isinstance(reference.args, tuple)


def test_torch_is_not_imported() -> None:
    """The parent can name a target without torch's seconds."""
    code = "import sys, pathlib, oomdoctor.target.reference as r; r.parse_reference('gpt2', directory=pathlib.Path()); "
    subprocess.run([sys.executable, "-c", code + "assert 'torch' not in sys.modules"], check=True)


def test_a_shorthand_names_a_model_of_a_library(tmp_path: Path) -> None:
    """`timm:resnet50(image_size=288)` is no module; an `hf:` name is a directory's where there is one."""
    reference = parse_reference("timm:resnet50.a1_in1k (image_size=288)", directory=tmp_path)
    assert (reference.hub, reference.model, reference.kwargs) == ("timm", "resnet50.a1_in1k", {"image_size": 288})
    assert (reference.location, reference.path, reference.module) == ("timm:resnet50.a1_in1k", None, None)
    assert reference.call == "build_model()"
    assert reference.with_keywords("depth=2") == "timm:resnet50.a1_in1k(depth=2)"
    (tmp_path / "net.py").touch()
    of_file = parse_reference("net.py:make(depth=24)", directory=tmp_path)
    assert of_file.with_keywords("depth=2") == "net.py:make(depth=2)"

    (tmp_path / "models/a (b)").mkdir(parents=True)
    for text, model in (
        ("hf:models/a (b)", str(tmp_path / "models/a (b)")),
        ("hf:models/c(layers=2)", "models/c"),
        ("lightning:package.module.Classifier(data='package.Data')", "package.module.Classifier"),
    ):
        assert parse_reference(text, directory=tmp_path).model == model


@pytest.mark.parametrize(
    "text",
    ["timm:", "timm:hf-hub:a/b", "torchvision:a b", "lightning:Classifier", "timm:resnet50(288)", "hf:bert(a=b)"],
)
def test_a_shorthand_of_another_form_is_refused(tmp_path: Path, text: str) -> None:
    """Names that the library cannot have, arguments without a keyword and those that are no literals."""
    _refused(text, tmp_path)


def test_a_file_that_is_called_as_a_library_goes_by_its_name(write: Write, tmp_path: Path) -> None:
    """`timm.py:build` is the file."""
    path = write("timm.py")
    assert parse_reference("timm.py:build", directory=tmp_path).path == str(path)
