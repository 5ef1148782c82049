"""Draw the README's picture: run the command that it shows, and export what it prints as SVG.

Usage: python docs/picture.py
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

COMMAND = ["oomdoctor", "probe", "gpt2", "--target-batch", "256", "--gpu", "rtx-4090"]
PICTURE = Path(__file__).with_name("probe-gpt2.svg")
WIDTH = 80
_FONTS = re.compile(r"[ \t]*@font-face \{.*?\}\n", re.DOTALL)


def output() -> str:
    """What the command prints in colour on a terminal of `WIDTH` columns."""
    ended = subprocess.run(
        [sys.executable, "-m", *COMMAND, "--quiet"],
        env=_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    return ended.stdout


def draw(text: str) -> str:
    """The SVG of a terminal that shows `text`, ANSI styles and all."""
    with Path("/dev/null").open("w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=WIDTH, file=nowhere, force_terminal=True)
        console.print(f"$ {' '.join(COMMAND)}", highlight=False)
        console.print(Text.from_ansi(text))
        drawn = console.export_svg(title="oomdoctor", unique_id="oomdoctor")
    return _FONTS.sub(
        "", drawn
    )  # Rich names fonts of another server; where they are missing, the reader's own are used


def _environment() -> dict[str, str]:
    return {**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(WIDTH), "TERM": "xterm-256color"}


if __name__ == "__main__":
    PICTURE.write_text(draw(output()), encoding="utf-8")
    print(f"Wrote {PICTURE}")
