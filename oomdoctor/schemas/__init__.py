"""JSON Schemas of the documents, generated from their dataclasses; the files beside this one hold them.

A field's description is its line under `Attributes:` in the docstring of its class.
"""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import is_dataclass
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Final, Union, get_args, get_origin

from oomdoctor.codec import choices, class_fields, is_added_later, type_hints

if TYPE_CHECKING:
    from collections.abc import Iterator

_DESCRIPTION: Final = (
    "The one document that `{command} --json` writes. Sizes are integers of bytes in fields named `..._bytes`, lines "
    "and columns count from 1, and what is not known is null. A reader passes over fields that it does not know."
)
_TYPES: Final = {str: "string", bool: "boolean", int: "integer", float: "number"}
_ATTRIBUTE: Final = re.compile(r"(?m)^    (\w+): ")


def schema_of(document: type) -> dict[str, Any]:
    """Return the JSON Schema of a document's class."""
    command = re.findall(r"`(.+?)`", inspect.getdoc(document) or "")[0]
    parts = {kind.__name__: _object(kind) for kind in _parts(document)}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": command}
    return {**head, **_object(document), "description": _DESCRIPTION.format(command=command), "$defs": parts}


def as_text(schema: dict[str, Any]) -> str:
    """Return a schema as its file has it."""
    return json.dumps(schema, indent=2) + "\n"


def _parts(kind: Any) -> dict[type, None]:  # noqa: ANN401 - any type hint
    """Return the dataclasses below a type, each once, in the order in which they are met."""
    found: dict[type, None] = {}
    for hint in type_hints(kind).values() if is_dataclass(kind) else get_args(kind):
        if is_dataclass(hint) and isinstance(hint, type):
            found[hint] = None
        found |= _parts(hint)
    return found


def _object(kind: Any) -> dict[str, Any]:  # noqa: ANN401 - a dataclass
    text, hints = inspect.getdoc(kind) or "", type_hints(kind)
    described = dict(_attributes(text))
    fields = sorted(class_fields(kind), key=lambda field: field.name != "schema_version")  # which documents begin with
    later = {field.name: " Documents of earlier versions lack it." for field in fields if is_added_later(field)}
    return {
        "description": _plain(text.partition("\n\n")[0]),
        "type": "object",
        "required": [field.name for field in fields if field.name not in later],
        "properties": {
            field.name: {"description": described[field.name] + later.get(field.name, ""), **_typed(hints[field.name])}
            for field in fields
        },
    }


def _attributes(docstring: str) -> Iterator[tuple[str, str]]:
    """Return what `Attributes:` says of each field: (name, description)."""
    _, *parts = _ATTRIBUTE.split(docstring.partition("\nAttributes:\n")[2])
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        yield name, _plain(text.partition("\n\n")[0])


def _plain(text: str) -> str:
    return re.sub(r"\bNone\b", "null", " ".join(text.split()))


def _typed(hint: object) -> dict[str, Any]:
    if get_origin(hint) in (Union, UnionType):
        return _of_union(list(get_args(hint)))
    if is_dataclass(hint):
        return {"$ref": f"#/$defs/{hint.__name__}"}  # type: ignore[union-attr]
    if get_origin(hint) is tuple:
        return {"type": "array", "items": _typed(get_args(hint)[0])}
    if get_origin(hint) is dict:
        return {"type": "object", "additionalProperties": _typed(get_args(hint)[1])}
    if found := choices(hint):
        return {"enum": list(found)} if len(found) > 1 else {"const": found[0]}
    kind = _TYPES[hint]  # type: ignore[index]
    return {"type": kind, "minimum": 0} if hint in (int, float) else {"type": kind}


def _of_union(kinds: list[object]) -> dict[str, Any]:
    first = _typed(kinds[0])
    if NoneType not in kinds:
        return first
    return {**first, "type": [first["type"], "null"]} if kinds[0] in _TYPES else {"anyOf": [first, {"type": "null"}]}
