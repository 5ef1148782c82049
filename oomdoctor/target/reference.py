"""References to a target: `model.py`, `pkg.module`, `model.py:build_model(depth=24)`, an example, or a shorthand.

A shorthand is a model that a library knows by name: `timm:resnet50`, `torchvision:resnet50`, `hf:DIRECTORY_OR_ID`.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import re
import warnings
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.util import find_spec
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from oomdoctor.errors import TargetError
from oomdoctor.target.script import refuse_script

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

HUBS: Final = ("timm", "torchvision", "hf", "lightning")
_SHORTHAND: Final = re.compile(
    rf"(?P<hub>{'|'.join(HUBS)}):(?P<name>.*?)\s*(?:\((?P<arguments>[^()]*(?:\(.*\)[^()]*)*)\))?", re.DOTALL
)
_NAMES: Final = {
    "timm": (r"\w[\w.\-]*", "a model of `timm.list_models()`, such as `timm:resnet50`"),
    "torchvision": (r"\w+", "a model of `torchvision.models.list_models()`, such as `torchvision:resnet50`"),
    "hf": (r"[^\0]+", "a directory with a `config.json`, or a model's id on the hub, such as `hf:bert-base-uncased`"),
    "lightning": (
        r"[^\W\d]\w*(?:\.[^\W\d]\w*)+",
        "a LightningModule with its module's name, such as `lightning:package.module.Classifier`",
    ),
}
"""What a name of each hub looks like, as an expression and in words."""


class Shorthand(NamedTuple):
    """A shorthand, taken apart.

    Attributes:
        hub: One of `HUBS`.
        name: The model's name there.
        arguments: Source of its keywords as between the parentheses; None without parentheses.
    """

    hub: str
    name: str
    arguments: str | None


def read_shorthand(text: str) -> Shorthand | None:
    """Take a shorthand apart; None for another kind of target.

    Raises:
        TargetError: What follows the colon can be no name there.
    """
    match = _SHORTHAND.fullmatch(text)
    if match is None:
        return None
    hub, name = match["hub"], match["name"].strip()
    pattern, meaning = _NAMES[hub]
    if not re.fullmatch(pattern, name):
        raise TargetError(
            f"`{name}` is no model's name for `{hub}:`" if name else f"`{hub}:` names no model",
            hint=f"it takes {meaning}; a file of your own that is called `{hub}.py` goes by that name",
        )
    return Shorthand(hub, name, match["arguments"])


EXAMPLES_PACKAGE = "oomdoctor.examples"
_EXAMPLES_DIRECTORY = Path(__file__).parent.parent / "examples"
_FORMS = (
    "a target looks like `model.py`, `model.py:build_model(depth=24)`, `package.module:build_model` or `timm:resnet50`"
)

# The first colon that a name follows separates, unless it is that of a drive, as in `C:model.py`.
_SPLIT = re.compile(
    r"(?P<location>(?:[A-Za-z]:(?=[^:(]*\.py$))?.+?)"
    r"(?::(?P<attribute>[^\W\d]\w*(?:\.[^\W\d]\w*)*)\s*(?:\((?P<arguments>.*)\))?)?",
    re.DOTALL,
)
_MODULE = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_BROKEN_CALL = re.compile(r"\.py\s*[:(]|:[^\\/]*\(|[()]\s*$|^:|:$")
_MOST_CANDIDATES = 500


@dataclass(frozen=True, slots=True)
class Reference:
    """A target as it was named; every field is text or None, so that it travels as JSON.

    Attributes:
        text: What was typed.
        directory: Absolute directory that relative paths and modules start from.
        location: The part of `text` that names the file or module.
        path: Absolute path of the file; None for a module.
        module: Dotted name of the module; None for a file.
        attribute: Name of what builds the model, None for `build_model`.
        arguments: Source of its arguments as between the parentheses; all are literals.
        hub: What knows the model of a shorthand by name, such as `timm`; its file is generated from its configuration,
            and `arguments` are keywords of that.
        model: Its name there; for a directory, the absolute path.
    """

    text: str
    directory: str
    location: str
    path: str | None = None
    module: str | None = None
    attribute: str | None = None
    arguments: str | None = None
    hub: str | None = None
    model: str | None = None

    @property
    def args(self) -> tuple[object, ...]:
        """Positional arguments for what builds the model."""
        return _literal_arguments(self.arguments or "")[0]

    @property
    def kwargs(self) -> dict[str, object]:
        """Keyword arguments for what builds the model."""
        return _literal_arguments(self.arguments or "")[1]

    @property
    def call(self) -> str:
        """Return the call that builds the model, as a person writes it, such as `build_model(depth=24)`."""
        arguments = "" if self.hub is not None else (self.arguments or "").strip()
        return f"{self.builder}({arguments})"

    def with_keywords(self, keywords: str) -> str:
        """Return the target with keywords for its model, such as `layers=2`, as a person writes it."""
        return f"{self.location}({keywords})" if self.hub else f"{self.location}:{self.builder}({keywords})"

    @property
    def builder(self) -> str:
        """Return the name of what builds the model."""
        return self.attribute or "build_model"


def parse_reference(text: str, *, directory: Path, verb: str = "probe", options: str = "") -> Reference:
    """Read a target's name: `path.py`, `package.module` or a shipped example, each with an optional `:name(literals)`.

    Or a shorthand such as `timm:resnet50`, with optional keywords.

    Args:
        text: What was typed.
        directory: Where relative paths and modules start.
        verb: The command of oomdoctor that reads it, for the hint at a script's own command.
        options: Options that were given to it, as they are typed.

    Raises:
        TargetError: The form is wrong, nothing of that name exists, an argument is not a literal, or the file is a
            script that trains.
    """
    text, directory = text.strip(), Path(directory).absolute()
    if text.endswith(".py") and _kind(directory / text) == "file":
        refuse_script(directory / text, text, "build_model", verb, options)
        return Reference(text, str(directory), text, path=_absolute(directory / text))
    if (shorthand := read_shorthand(text)) is not None:
        return _of_shorthand(text, shorthand, directory)
    match = _SPLIT.fullmatch(text)
    if match is None:
        raise _bad_form(text)
    location, attribute, arguments = match["location"].strip(), match["attribute"], match["arguments"]
    _check_literals(attribute, arguments)
    path, module = _locate(text, location, directory)
    if path is not None:
        refuse_script(Path(path), location, (attribute or "build_model").partition(".")[0], verb, options)
    return Reference(text, str(directory), location, path, module, attribute, arguments)


def _of_shorthand(text: str, shorthand: Shorthand, directory: Path) -> Reference:
    """Return the reference; an `hf:` name is a directory's where there is one."""
    hub, name, arguments = shorthand
    whole = text.partition(":")[2]
    if hub == "hf" and _kind(directory / whole) == "directory":
        name, arguments = whole, None
    location = f"{hub}:{name}"
    _check_literals(location, arguments)
    if _literal_arguments(arguments or "")[0]:
        raise TargetError(
            f"`{location}({arguments})` has an argument without a keyword",
            hint=f"name each: `{location}(image_size=288)`",
        )
    folder = directory / name
    model = _absolute(folder) if hub == "hf" and _kind(folder) == "directory" else name
    return Reference(text, str(directory), location, arguments=arguments, hub=hub, model=model)


def _check_literals(called: str, arguments: str | None) -> None:
    try:
        _literal_arguments(arguments or "")
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
        problem = "cannot be read" if isinstance(error, SyntaxError) else "are not all literals"
        raise TargetError(
            f"the arguments of `{called}({arguments})` {problem}",
            hint="give numbers, strings, None, True, False, or lists, tuples and dicts of them, in quotes for the "
            "shell: `'model.py:build_model(depth=24, norm=\"layer\")'`",
        ) from None


def _locate(text: str, location: str, directory: Path) -> tuple[str | None, str | None]:
    """Return the path and the module that `location` names; exactly one of the two is not None."""
    path = directory / location
    if location.endswith(".py"):
        _check_file(location, path, directory)
        return _absolute(path), None
    if _MODULE.fullmatch(location) and not ("." in location and _kind(path) == "file"):
        return None, _find_module(location, directory)
    if _BROKEN_CALL.search(text) or not location:
        raise _bad_form(text)
    _check_file(location, path, directory)
    raise TargetError(
        f"`{location}` is not a Python file",
        hint=_NOTEBOOK if location.endswith(".ipynb") else f"name a file that ends in `.py`; {_FORMS}",
    )


_NOTEBOOK = "turn the notebook into a file first: `jupyter nbconvert --to script NOTEBOOK`"


def _check_file(location: str, path: Path, directory: Path) -> None:
    kind = _kind(path)
    if kind == "file":
        return
    if kind == "directory":
        raise _is_a_directory(location, path)
    if kind == "other":
        raise TargetError(f"`{location}` is not a regular file", hint=_FORMS)
    known = chain(_python_files(directory), _python_files(path.parent, prefix=Path(location).parent), example_names())
    raise TargetError(
        f"no such file: `{location}`" + ("" if Path(location).is_absolute() else f" in `{directory}`"),
        hint=_did_you_mean(location, known) or _FORMS,
    )


def _find_module(name: str, directory: Path) -> str:
    """Return the module that `name` means: one in the directory, else a shipped example, else an installed one."""
    top = name.partition(".")[0]
    importlib.invalidate_caches()
    in_directory = PathFinder.find_spec(top, [str(directory)])
    if in_directory is not None and in_directory.origin is not None:
        return name
    if name in example_names():
        return f"{EXAMPLES_PACKAGE}.{name}"
    path = directory / name
    if _kind(path) == "directory":
        raise _is_a_directory(name, path)
    if in_directory is None and not _is_installed(top):
        known = chain(
            example_names(),
            (file.removesuffix(".py").replace("/", ".").replace("\\", ".") for file in _python_files(directory)),
            _python_files(directory),
        )
        raise TargetError(
            f"there is no module `{top}` in `{directory}`, none installed, and no example of that name",
            hint=_did_you_mean(name, known) or f"{_FORMS}; examples: {_listed(example_names())}",
        )
    return name


def _is_installed(top: str) -> bool:
    try:
        return top != "__main__" and find_spec(top) is not None
    except (ImportError, ValueError):  # a module that is loaded, but was never found
        return False


def example_names() -> list[str]:
    """Return the names of the shipped examples, such as `gpt2`."""
    return sorted(file.stem for file in _EXAMPLES_DIRECTORY.glob("*.py") if not file.stem.startswith("_"))


def _literal_arguments(source: str) -> tuple[tuple[object, ...], dict[str, object]]:
    """Evaluate `source` as the arguments of a call.

    Raises:
        SyntaxError: It is not the inside of one call's parentheses.
        ValueError: Something is not a literal; TypeError, MemoryError and RecursionError come from odd ones.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expression = ast.parse(f"_({source}\n)", mode="eval").body
    match expression:
        case ast.Call(func=ast.Name(), args=positional, keywords=keywords):
            pass
        case _:  # such as `_(1)(2)`, which is two calls
            raise SyntaxError(source)
    names = [keyword.arg for keyword in keywords]
    if None in names or len(set(names)) < len(names):
        raise SyntaxError(source)
    named = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in keywords}
    return tuple(ast.literal_eval(argument) for argument in positional), named


def _bad_form(text: str) -> TargetError:
    missing = ": a `)` is missing" if text.count("(") > text.count(")") else ""
    return TargetError(f"`{text}` does not name a target{missing}" if text else "the target has no name", hint=_FORMS)


def _is_a_directory(location: str, path: Path) -> TargetError:
    inside = [f"{location.rstrip('/')}/{name}" for name in islice(_python_files(path, depth=1), 5)]
    return TargetError(
        f"`{location}` is a directory, not a Python file",
        hint=f"name a file in it: {_listed(inside)}" if inside else _FORMS,
    )


def _did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """Return a question that names the nearest names, or None where nothing is near."""
    stems: dict[str, list[str]] = {}  # an ending that all share makes none of them alike
    candidates = list(dict.fromkeys(known))
    for candidate in candidates:
        stems.setdefault(Path(candidate).stem, []).append(candidate)
    near = stems.get(Path(name).stem) or difflib.get_close_matches(name, candidates, n=3, cutoff=0.7)
    near = near or [path for stem in difflib.get_close_matches(Path(name).stem, stems) for path in stems[stem]]
    return f"did you mean {_listed(near[:3], last='or')}?" if near else None


def _listed(names: list[str], last: str = "and") -> str:
    quoted = [f"`{name}`" for name in names]
    return f" {last} ".join(filter(None, [", ".join(quoted[:-1]), *quoted[-1:]]))


def _python_files(directory: Path, *, prefix: Path = Path(), depth: int = 2) -> Iterator[str]:
    """Python files in `directory` and just below it, as paths from `prefix`; few enough to be quick anywhere."""
    patterns = ("*.py", "*/*.py")[:depth]
    try:
        found = chain.from_iterable(directory.glob(pattern) for pattern in patterns)
        for file in sorted(islice(found, _MOST_CANDIDATES)):
            if not any(part.startswith(".") for part in file.relative_to(directory).parts):
                yield str(prefix / file.relative_to(directory))
    except (OSError, ValueError):  # a directory that cannot be read, or whose name no file system takes
        return


def _absolute(path: Path) -> str:
    return str(path.resolve() if ".." in path.parts else path)


def _kind(path: Path) -> Literal["file", "directory", "other", "nothing"]:
    try:
        if path.is_file():
            return "file"
        if path.is_dir():
            return "directory"
        return "other" if path.exists() else "nothing"
    except (OSError, ValueError):  # a name that is too long, or that holds a null byte
        return "nothing"
