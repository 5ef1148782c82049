"""`python -m oomdoctor`: the interpreter that runs this is the one whose torch is asked."""

from __future__ import annotations

from oomdoctor.cli import entry_point

if __name__ == "__main__":
    entry_point()
