"""How far a message reaches beyond its first line, where no template tells."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from oomdoctor.diagnosis.text.joining import bare

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_LINES: Final = 12
_WRAPS_FROM: Final = 60  # characters; a shorter line was not broken by a terminal

# What libraries print on lines of their own behind the first one.
_CONTINUES: Final = re.compile(
    r"Last error|nccl[A-Z]\w{1,40}:|Cuda failure|Call to |Memory on the node|Failed to CUDA"
    r"|.{0,200}NCCL WARN (?:Failed|Cuda failure)"
    r"|CUDA kernel errors might|For debugging consider|Compile with TORCH|Exception raised from|Search for cuda"
    r"|Out of memory error on |Please check whether|srun: error|\([Tt]riggered internally",
)
_ENDS: Final = re.compile(
    r"Traceback \(|File \"|\d{4}-\d\d-\d\d|\[?\d\d:\d\d|\[[^\]]{1,80}\]|(?:DEBUG|INFO|WARN\w{0,3}|ERROR|CRITICAL)\b"
    r"|frame #\d|During handling|The above exception|[\w.]{0,200}(?:Error|Exception)\b"
)
_NAMES_AN_ERROR: Final = re.compile(r"\b\w{1,80}(?:Error|Exception): ")
_SENTENCE_ENDS: Final = (".", "!", "?", ":", ";", "。")


def last_line(lines: Sequence[str], first: int) -> int:
    """Index of the last line of the message that begins in line `first`."""
    last = first
    for index in range(first + 1, min(len(lines), first + _MOST_LINES)):
        line = bare(lines[index])
        if not line and bare(lines[last]).endswith(":"):
            continue  # the message begins below its type, after an empty line
        if not line or not _belongs(bare(lines[last]), line):
            break
        last = index
    return last


def _belongs(before: str, line: str) -> bool:
    if _CONTINUES.match(line) is not None:
        return True
    if _ENDS.match(line) is not None or _NAMES_AN_ERROR.search(line) is not None:
        return False
    return len(before) >= _WRAPS_FROM and not before.endswith(_SENTENCE_ENDS)
