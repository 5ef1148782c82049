"""What `--fix` makes of each script that has a mistake."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from oomdoctor.cli import main
from oomdoctor.lint.checking import check
from oomdoctor.lint.code.parsing import parse
from oomdoctor.lint.rules import ALL

FIXTURES = Path(__file__).parent / "fixtures"


def fixable() -> list[Path]:
    """Scripts with a finding that can be put right."""
    found = []
    for path in sorted(FIXTURES.rglob("bad_*.py")):
        if not path.name.endswith(".fixed.py"):
            rules = [rule for rule in ALL if rule.default or rule.code == path.parent.name]
            if any(hit.edits for _, hit in check(parse(path.read_text(encoding="utf-8"), path), rules)):
                found.append(path)
    return found


def fixed(path: Path, folder: Path) -> str:
    """The text that `lint --fix` leaves of a script, which it must not change a second time."""
    script = folder / path.name
    script.write_bytes(path.read_bytes())
    extra = ["--extend-select", path.parent.name] if path.parent.name.startswith("OOM") else []
    main(["lint", "--isolated", "--fix", *extra, str(script)])
    once = script.read_text(encoding="utf-8")
    main(["lint", "--isolated", "--fix", *extra, str(script)])
    assert script.read_text(encoding="utf-8") == once
    return once


@pytest.mark.parametrize("path", fixable(), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_script_is_put_right_as_its_twin_shows(path: Path, tmp_path: Path) -> None:
    """`--fix` turns a script into its twin, once and for all, and leaves nothing else different."""
    twin = path.with_suffix(".fixed.py")
    text = fixed(path, tmp_path)
    if os.environ.get("OOMDOCTOR_TEST_REWRITE"):
        twin.write_text(text, encoding="utf-8")
    assert text == twin.read_text(encoding="utf-8")


def test_each_twin_belongs_to_a_script_that_can_be_put_right() -> None:
    """No twin is left behind by a rule that has changed."""
    assert {path.with_suffix(".fixed.py") for path in fixable()} == set(FIXTURES.rglob("*.fixed.py"))
