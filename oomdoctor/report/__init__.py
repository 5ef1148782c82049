"""How documents are shown: a room a command, a file a format, and beside the rooms what they share.

Each renderer takes a document and the terminal that it is for, and returns text; one that writes no terminal passes
over the latter.
"""

from __future__ import annotations

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from oomdoctor.output import Terminal


# A renderer takes the document of its own command, which the key stands for.
Renderer: TypeAlias = "Callable[[Any, Terminal], str]"


def _lazy(module: str) -> Renderer:
    """The `render` of a module that is imported when it is first used: rich costs 40 ms that JSON does not need."""

    def render(document: object, terminal: Terminal) -> str:
        renderer = cast("Renderer", import_module(f"oomdoctor.report.{module}").render)
        return renderer(document, terminal)

    return render


# Directory by command.
_ROOMS: Mapping[str, str] = MappingProxyType(
    {"probe": "probe", "diagnose": "diagnose", "lint": "lint", "check": "check"}
)

# Formats that have a file of their own in every directory.
_FORMATS = ("text", "markdown", "html", "github", "junit", "sarif")

FORMATS: Mapping[tuple[str, str], Renderer] = MappingProxyType(
    {(command, name): _lazy(f"{room}.{name}") for command, room in _ROOMS.items() for name in _FORMATS}
    | {(command, "json"): _lazy("json") for command in _ROOMS}
)
"""Renderer by the command that wrote the document and the name of the format."""
