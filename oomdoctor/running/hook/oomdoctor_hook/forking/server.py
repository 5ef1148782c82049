"""The fork server's main program: import what the first trial had imported, say so, and wait for processes to become.

Usage: EXECUTABLE [OPTIONS] server.py SOCKET DESCRIPTION, with the environment that torch was imported with. When it is
ready, or cannot be, it says so in one line of JSON on its standard output. It ends with its parent, or when its socket
is taken away.

A program runs below this file's last lines: their frame is the one more that it has, and tracebacks are shown without.
"""

from __future__ import annotations

import sys

_HAD = dict(globals())


def _load() -> object:
    """Import this file's own package, which is nowhere in `sys.path`."""
    here = __file__.rpartition("/")[0]
    folder = here.rpartition("/")[0].rpartition("/")[0]
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]
    sys.path.insert(0, folder)
    try:
        from oomdoctor_hook.forking import preparation  # type: ignore[import-not-found]  # noqa: PLC0415

        return preparation
    finally:
        sys.path.remove(folder)


if __name__ == "__main__":
    _CALL = _load().serve(sys.argv, _HAD)  # type: ignore[attr-defined]
    if _CALL is not None:
        try:
            _CALL.function(*_CALL.arguments)
            _CALL.ending.returned()
        except SystemExit as error:
            _CALL.ending.asked(error.code)
            raise
        except BaseException as error:
            _CALL.ending.failed(error)
            _CALL.hide_frames(__file__)
            raise
