"""Sizes besides the batch, as people write them: `sequence_length=512`, several values, a command's `{name}`.

What they are in the user's file is in `oomdoctor.target.sizes`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from oomdoctor.errors import UsageError

_OWN_SIZES: Final = ("batch_size", "micro_batch", "accumulation_steps", "world_size")


def read_sizes(sizes: Mapping[str, int] | Sequence[str], option: str = "at") -> dict[str, int]:
    """Read sizes other than the batch, each as `NAME=SIZE` where it is text; one text alone is one size.

    Raises:
        UsageError: One has no name, is no whole number above 0, is given twice, or is the batch size.
    """
    found: dict[str, int] = {}
    for name, size in _pairs(sizes, option, "sequence_length=512"):
        value = str(size)
        check_size_name(name, option, f"{option} {name}={value}", found)
        if re.fullmatch(r"\d{13,}", value.strip()):
            raise UsageError(f"`{option} {name}={value}` is larger than any size", hint="give a smaller one")
        if not re.fullmatch(r"\d{1,12}", value.strip()) or int(value) < 1:
            hint = "give a size of 1 or more, such as 512"
            raise UsageError(f"`{option} {name}={value}` gives no whole number above 0", hint=hint)
        found[name] = int(value)
    return found


def read_grid(texts: Mapping[str, Iterable[int]] | Sequence[str], option: str = "over") -> dict[str, list[int]]:
    """Read sizes with several values each, as `NAME=SIZE,SIZE,...` where they are text; one text alone is one size.

    Raises:
        UsageError: As of `read_sizes`; or a value is given twice.
    """
    found: dict[str, list[int]] = {}
    for name, given in _pairs(texts, option, "sequence_length=256,512"):
        values = given.split(",") if isinstance(given, str) else given if isinstance(given, Iterable) else [given]
        sizes = [read_sizes([f"{name}={value}"], option).popitem()[1] for value in values]
        if not sizes:
            raise UsageError(f"`{option}` gives `{name}` no value", hint=f"give some, as in `{name}=256,512`")
        if name in found or len({*sizes}) < len(sizes):
            twice = name if name in found else next(f"{name}={one}" for one in sizes if sizes.count(one) > 1)
            raise UsageError(f"`{option}` gives `{twice}` twice", hint="give each size and value once")
        found[name] = sizes
    return found


def _pairs(given: object, option: str, example: str) -> list[tuple[str, object]]:
    """Return the names and what they are given.

    Raises:
        UsageError: It is neither a mapping nor text, one or several; or a text has no `=`.
    """
    if isinstance(given, Mapping):
        return list(given.items())
    texts = [given] if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
    if any(not isinstance(text, str) for text in texts):
        raise UsageError(f"`{option}` is {given!r}", hint=f"give sizes by name, or text such as `{example}`")
    for text in texts:
        if "=" not in str(text):
            raise UsageError(f"`{option} {text}` gives no size", hint=f"write the name and the size, as in `{example}`")
    return [(name, value) for name, _, value in (str(text).partition("=") for text in texts)]


def check_size_name(name: object, option: str, given: str, others: Mapping[str, int]) -> None:
    """See that a size besides the batch can have a name.

    Args:
        name: The name.
        option: The option that gives it.
        given: What was given, for the error.
        others: The sizes that the option gave before.

    Raises:
        UsageError: It is no name, is given twice, or is a size that a probe searches or plans itself.
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise UsageError(f"`{given}` names no size", hint="write the name and the size, as in `sequence_length=512`")
    if name in _OWN_SIZES:
        hint = "the micro-batch is what is searched; the sizes to give are others, such as `sequence_length=512`"
        raise UsageError(f"`{given}` is not for `{option}`", hint=hint)
    if name in others:
        raise UsageError(f"`{option}` gives `{name}` twice", hint="give each size once")


def check_placeholder(name: str, texts: Sequence[str], given: str) -> None:
    """See that a command is told a size.

    Args:
        name: The size's name.
        texts: The command's words, and the literals that are set in its files.
        given: What was given, for the error.

    Raises:
        UsageError: It has no placeholder of that name.
    """
    if not any(f"{{{name}}}" in text for text in texts):
        hint = f"write `{{{name}}}` where the size goes, as in `-- python train.py --length {{{name}}}`"
        raise UsageError(f"`{given}`: the command has no `{{{name}}}`", hint=hint)


def fill_sizes(
    command: Sequence[str], literals: Sequence[str], sizes: Mapping[str, int]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Fill sizes in where a command, or the literals that are set in its files, have placeholders of their names.

    Args:
        command: The command's words.
        literals: Literals to set in its files, as text.
        sizes: Sizes by name.

    Raises:
        UsageError: There is no placeholder of a size's name.
    """
    for name in sizes:
        check_placeholder(name, (*command, *literals), f"{name}={sizes[name]}")

    def filled(text: str) -> str:
        for name, size in sizes.items():
            text = text.replace(f"{{{name}}}", str(size))
        return text

    return tuple(map(filled, command)), tuple(map(filled, literals))
