"""A page taken apart: its tags, its style and its words."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta"}


class HtmlPage(HTMLParser):
    """The tags of a page with their attributes, its style, and its words."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, tuple[tuple[str, str | None], ...]]] = []
        self.open: list[str] = []
        self.style = ""
        self.pieces: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag that opens."""
        self.tags.append((tag, tuple(attrs)))
        if tag == "br":
            self.pieces.append(" ")
        elif tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag that is closed at once."""
        self.tags.append((tag, tuple(attrs)))

    def handle_endtag(self, tag: str) -> None:
        """See that tags are closed in order."""
        assert self.open.pop() == tag
        self.pieces.append(" ")

    def handle_comment(self, data: str) -> None:
        """A page has none."""
        raise AssertionError(data)

    def handle_data(self, data: str) -> None:
        """Keep words and style apart."""
        if self.open and self.open[-1] == "style":
            self.style += data
        else:
            self.pieces.append(data)

    @property
    def text(self) -> str:
        """The page's words, white space runs made one."""
        return " ".join("".join(self.pieces).split())
