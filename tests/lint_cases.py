"""Cases of the rules: scripts in `tests/lint/cases`, one Markdown file a rule, one heading a case.

A case is a script in a fenced block. `# expect: OOM101` in a line of it marks a finding that has to be there. A second
block, marked `python fixed`, is what `oomdoctor lint --fix` has to make of the script; a case has one exactly where it
has a finding with a fix.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "lint" / "cases"
MARK = re.compile(r"#\s*expect:\s*(OOM\d+(?:\s*,\s*OOM\d+)*)")
_CASE = re.compile(
    r"## (?P<name>\w+)\n\n```python\n(?P<text>.*?\n)```\n(?:\n```python fixed\n(?P<fixed>.*?\n)```\n)?(?=\n## |\Z)",
    re.DOTALL,
)


@dataclass(frozen=True)
class Case:
    """A script that has a rule's mistake, or only looks so.

    Attributes:
        code: The rule's code.
        name: Begins with `bad_` where the script has the mistake, else with `good_`.
        text: The script.
        fixed: The script after `--fix`; None where nothing in it can be fixed.
    """

    code: str
    name: str
    text: str
    fixed: str | None

    def __str__(self) -> str:
        """The case's name in a test's id."""
        return f"{self.code}/{self.name}"

    @property
    def expected(self) -> list[tuple[int, str]]:
        """Line and code of each finding that the script is marked with."""
        return sorted(
            (number, code.strip())
            for number, line in enumerate(self.text.splitlines(), 1)
            for mark in MARK.finditer(line)
            for code in mark[1].split(",")
        )


def read(path: Path) -> list[Case]:
    """The cases of one rule; every character of the file has to belong to one, or to the title."""
    text = path.read_text(encoding="utf-8")
    title, *_ = text.partition("\n")
    found = list(_CASE.finditer(text))
    rest = _CASE.sub("", text).removeprefix(title).strip()
    if rest or not found:
        raise ValueError(f"{path}: not a case: {rest[:80]!r}")
    return [Case(path.stem, *case.groups()) for case in found]


def write_fixed(case: Case, fixed: str) -> None:
    """Replace what `--fix` is expected to make of a case, or add it."""
    path = FOLDER / f"{case.code}.md"
    text = path.read_text(encoding="utf-8")
    (found,) = (each for each in _CASE.finditer(text) if each[1] == case.name)
    block = f"## {case.name}\n\n```python\n{case.text}```\n\n```python fixed\n{fixed}```\n"
    path.write_text(text[: found.start()] + block + text[found.end() :], encoding="utf-8")


def case(name: str) -> Case:
    """The case of a name such as `OOM101/bad_function`."""
    (found,) = (each for each in CASES if str(each) == name)
    return found


CASES = [each for path in sorted(FOLDER.glob("*.md")) for each in read(path)]
SCRIPTS = {
    name: text
    for each in CASES
    for name, text in ((f"{each}.fixed", each.fixed), (str(each), each.text))
    if text is not None
}
"""Every script by its name, the fixed ones among them."""
