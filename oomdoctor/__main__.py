"""`python -m oomdoctor`."""

from __future__ import annotations

from oomdoctor.cli import entry_point

if __name__ == "__main__":
    entry_point()
