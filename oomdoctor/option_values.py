"""Values of options and parameters, as everybody gives them: read, or refused with the option's name."""

from __future__ import annotations

import inspect
import json
import math
import os
import re
from collections.abc import Callable, Collection
from functools import partial, wraps
from typing import Final, ParamSpec, TypeVar

from oomdoctor.errors import OomdoctorError, UsageError
from oomdoctor.units import parse_size, whole_number

Word = TypeVar("Word", bound=str)
Given = ParamSpec("Given")
Returned = TypeVar("Returned")

Spelling = Callable[[str], str]
"""How the caller's user writes the name of a parameter, such as `--target-batch` for `target_batch`."""


def with_value(spelled: Spelling, parameter: str, value: object) -> str:
    """Return a parameter with a value as its user writes it: `--mode eval`, or `mode = "eval"` in a file."""
    option = spelled(parameter)
    return f"{option} {value}" if option.startswith("--") else f"{option} = {json.dumps(value)}"


_OPTIONS: Final = re.compile(r"`(?:oomdoctor \w+ )?(--[a-z][a-z-]*(?:[ =][^`]*)?)`")
"""Options between backquotes, after the command or without it."""


def by_parameters(function: Callable[Given, Returned], others: Collection[str] = ()) -> Callable[Given, Returned]:
    """Return a function of the Python API whose errors name its parameters where they name a command's options.

    Args:
        function: The function.
        others: Parameters that it takes without naming them.
    """
    names = {*inspect.signature(function).parameters, *others}

    @wraps(function)
    def called(*args: Given.args, **kwargs: Given.kwargs) -> Returned:
        try:
            return function(*args, **kwargs)
        except OomdoctorError as error:
            error.message = in_parameters(error.message, names)
            error.hint = None if error.hint is None else in_parameters(error.hint, names)
            error.args = (error.message,)
            raise

    return called


def in_parameters(text: str, names: Collection[str], spelled: Spelling = str) -> str:
    """Return a text with parameters in place of options: `gpu = "t4"` for `--gpu t4`.

    A command that has words besides options, or options that are no parameters, stays as it is: it can be run.
    """
    return _OPTIONS.sub(partial(_parameters, names, spelled), text)


def _parameters(names: Collection[str], spelled: Spelling, found: re.Match[str]) -> str:
    given = re.split(r"(?:^| )--", found[1])[1:]
    pairs = [re.split(r"[ =]", one, maxsplit=1) for one in given]
    parameters = [name.replace("-", "_") for name, *_ in pairs]
    values = [value.strip() for _, *rest in pairs for value in rest]
    if not set(parameters) <= set(names) or any(" " in value for value in values):
        return found[0]
    said = (_given(spelled, parameter, *rest) for parameter, (_, *rest) in zip(parameters, pairs, strict=True))
    return f"`{', '.join(said)}`"


def _given(spelled: Spelling, parameter: str, value: str | None = None) -> str:
    if value is None:
        return spelled(parameter)
    if value.isupper() or value.endswith("..."):  # a word in place of a value
        return f"{spelled(parameter)} = {value}"
    return with_value(spelled, parameter, int(value) if value.isdecimal() else value)


def path_text(target: object) -> str:
    """Return a target as text."""
    path = os.fspath(target) if isinstance(target, os.PathLike) else target
    if not isinstance(path, str):
        hint = "give the file to probe as text or path"
        raise UsageError(f"`target` is `{target!r}`, which names no file", hint=hint)
    return path


def size_in_bytes(name: str, memory: int | str | None) -> int | None:
    """Return bytes; a number is as good as a size with its unit, and parts of a byte are a mistake."""
    if memory is None:
        return None
    text = memory if isinstance(memory, str) else f"{whole_number(name, memory)}B"
    return parse_size(text, option=name)


def text_or_none(name: str, value: str | None) -> str | None:
    """Return a text, or None."""
    if value is None or isinstance(value, str):
        return value
    raise UsageError(f"`{name}` is `{value!r}`, which is no text", hint="give its name as text")


def device_text(name: str, device: int | str | None) -> str | None:
    """Return the index or UUID of a device as text."""
    if device is None or isinstance(device, str):
        return device
    return str(whole_number(name, device))


def seconds(name: str, value: object, default: float) -> float:
    """Return a length of time above 0; the default for None."""
    if value is None:
        return default
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf:
        return float(value)
    raise UsageError(f"`{name}` is `{value!r}`, which is no length of time", hint="give seconds, above 0")


def one_of(name: str, value: object, words: tuple[Word, ...]) -> Word:
    """Return the word that a value is."""
    for word in words:
        if word == value:
            return word
    known = ", ".join(f"`{word}`" for word in words)
    raise UsageError(f"`{name}` is `{value!r}`, which is none of its values", hint=f"one of {known}")
