"""The console script, and `python -m oomdoctor`: an interrupt is told in one word from the first import on."""

from __future__ import annotations

import sys


def entry_point() -> None:
    """Run the command line; import it where an interrupt is caught, since that takes most of a quick command's time."""
    try:
        from oomdoctor.cli import main  # noqa: PLC0415 - see above

        code = main()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        code = 130  # as `oomdoctor.errors` has it, which may not be there yet
    sys.exit(code)


if __name__ == "__main__":
    entry_point()
