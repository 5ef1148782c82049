"""Main program of the fork server: import what the first trial had imported, then fork programs.

Usage: EXECUTABLE [OPTIONS] server.py SOCKET DESCRIPTION, with the environment that torch was imported with. When it is
ready, or cannot be, it says so in one line of JSON on its standard output. It ends with its parent, or when its socket
is taken away.

A program runs below this file's last lines: their frame is the one more that it has, and tracebacks are shown without.
"""

from __future__ import annotations

import sys

_HAD = dict(globals())


def _load() -> object:
    """Import the agent as the package `oomdoctor_agent`, which is nowhere in `sys.path`."""
    import importlib.util  # noqa: PLC0415 - the program's own modules are counted from `_HAD` on

    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]
    folder = __file__.rpartition("/")[0].rpartition("/")[0]
    spec = importlib.util.spec_from_file_location(
        "oomdoctor_agent", f"{folder}/__init__.py", submodule_search_locations=[folder]
    )
    if spec is None or spec.loader is None:
        raise ImportError(folder)
    agent = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = agent
    spec.loader.exec_module(agent)
    return importlib.import_module("oomdoctor_agent.forking.serving")


if __name__ == "__main__":
    _CALL = _load().serve(sys.argv, _HAD)  # type: ignore[attr-defined]
    if _CALL is not None:
        try:
            _CALL.function(*_CALL.arguments)
            _CALL.end.returned()
        except SystemExit as error:
            _CALL.end.exited(error.code)
            raise
        except BaseException as error:
            _CALL.end.failed(error)
            _CALL.hide_frames(__file__, _CALL.end)
            raise
