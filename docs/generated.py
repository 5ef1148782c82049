"""What the site's build makes from the code: the page of rules, each command's `--help`, and CONTRIBUTING.md as a page.

MkDocs calls the functions whose names begin with `on_`.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from mkdocs.structure.files import File, Files

from oomdoctor.cli import main

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
_COMMAND_PAGE = re.compile(r"commands/([a-z]+)\.md")
_CODE = re.compile(r"^\| (OOM\d+) ", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that no file of `docs/` holds."""
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").replace("](docs/", "](")
    for name, text in (("rules.md", rules_page()), ("contributing.md", contributing)):
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - by name
    """Return a command's page with its `--help` at the end, and any other page as it is."""
    command = _COMMAND_PAGE.fullmatch(page.file.src_uri)
    if command is None:
        return markdown
    return f"{markdown}\n## All options, as `--help` prints them\n\n```text\n{_printed(command[1], '--help')}```\n"


def rules_page() -> str:
    """Return the page of all lint rules, from the rules themselves."""
    table = _printed("rule", "--all", "--markdown")
    codes = _CODE.findall(table)
    linked = _CODE.sub(lambda row: f"| [{row[1]}](#{row[1].lower()}) ", table)
    intro = "What [`oomdoctor lint`](commands/lint.md) looks for. `[*]` marks rules whose findings `--fix` can correct."
    return "\n\n".join(["# Rules", intro, linked, *map(_rule, codes)]) + "\n"


def _rule(code: str) -> str:
    """Return one rule's text, its headings one level deeper than in a document of its own."""
    lines, is_code = [], False
    for line in _printed("rule", code, "--markdown").splitlines():
        is_code ^= line.startswith("```")
        lines.append(f"#{line}" if line.startswith("#") and not is_code else line)
    first, *rest = lines
    return "\n".join([f"{first} {{ #{code.lower()} }}", *rest])


def _printed(*arguments: str) -> str:
    """Return what a command prints on a plain terminal of 88 columns."""
    out = io.StringIO()
    plain = {"COLUMNS": "88", "TERM": "dumb"}
    with mock.patch.dict(os.environ, plain), contextlib.redirect_stdout(out):
        code = main([*arguments])
    if code:
        raise RuntimeError(f"`oomdoctor {' '.join(arguments)}` ended with exit code {code}")
    return out.getvalue()
