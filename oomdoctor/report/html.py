"""Reports as HTML: one self-contained page that shows hostile text and runs none of it.

Three things keep it so. Every value is escaped by the template engine, after characters that no reader can see were
taken out of it; the page has no script, and its Content-Security-Policy forbids any, and every request as well; the one
style sheet is allowed by its hash, so that no other style counts either.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from oomdoctor.report.plain_text import (
    CATEGORY_WORDS,
    LONGEST_TEXT,
    capitalised,
    optional_size,
    sentence,
    share,
    shortened,
    visible,
)
from oomdoctor.units import format_size

if TYPE_CHECKING:
    from collections.abc import Mapping


_STYLE: Final = "style.css"
_MOST_LINES: Final = 100


def render_page(template: str, values: Mapping[str, Any]) -> str:
    """Fill a template that extends `base.html`.

    Args:
        template: Name of a file in `oomdoctor/report/templates`.
        values: What the template shows; plain text, never markup.

    Returns:
        The page, with a newline at its end.
    """
    environment = _environment()
    style = environment.loader.get_source(environment, _STYLE)[0].strip() if environment.loader else ""
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    # The style sheet is ours; nothing of a document is in it.
    ours = {"style": Markup(style), "style_digest": digest}  # noqa: S704
    return environment.get_template(template).render({**values, **ours}).rstrip("\n") + "\n"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("oomdoctor.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_cleaned,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        capitalised=capitalised,
        category=CATEGORY_WORDS.__getitem__,
        lines=_lines,
        optional_size=optional_size,
        sentence=sentence,
        share=share,
        size=format_size,
        with_code=_with_code,
        uncut=Markup.escape,  # for geometry and code, which have no character that cannot be seen and keep their spaces
    )
    return environment


def _with_code(text: str) -> Markup:
    """Return escaped text whose pairs of backticks are code."""
    parts = [Markup.escape(part) for part in shortened(text, LONGEST_TEXT).split("`")]
    if len(parts) % 2 == 0:
        return Markup.escape(shortened(text, LONGEST_TEXT))
    marked = (Markup("<code>{}</code>").format(part) if index % 2 else part for index, part in enumerate(parts))
    return Markup().join(marked)


def _lines(text: str) -> Markup:
    """Return the first lines of a text, escaped, with their indentation and every character visible."""
    first = [visible(line) for line in text[:LONGEST_TEXT].splitlines()[:_MOST_LINES]]
    return Markup.escape("\n".join(first))


def _cleaned(value: object) -> object:
    """Return a value without invisible characters; markup comes from the templates' own macros and stays."""
    return shortened(value, LONGEST_TEXT) if isinstance(value, str) and not isinstance(value, Markup) else value
