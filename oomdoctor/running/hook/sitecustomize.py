# ruff: noqa: INP001 - a folder for PYTHONPATH, not a package
"""The first code of ours in a Python process that runs under `oomdoctor run`.

Python imports a module of this name at start, and finds this one because its folder is first in PYTHONPATH. It makes
itself unseen: its folder leaves `sys.path`, and the `sitecustomize` that Python would have found without us runs as it
would have. Any Python may come across this file, so it is written for all of them; the rest of the hook is for 3.8 and
later.
"""

import os
import sys


def _start_hook():  # type: ignore[no-untyped-def]  # noqa: ANN202 - older Pythons do not know annotations
    """Start the hook; whatever fails here is no business of the program's."""
    writes = sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # this folder belongs to another Python's installation
    try:
        import oomdoctor_hook  # type: ignore[import-not-found]  # noqa: PLC0415 - not in older Pythons

        oomdoctor_hook.install()
    except Exception:  # noqa: BLE001, S110 - a crash of ours must not be seen
        pass
    finally:
        sys.dont_write_bytecode = writes


def _leave_path():  # type: ignore[no-untyped-def]  # noqa: ANN202
    folder = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib takes longer than the hook
    sys.path[:] = [entry for entry in sys.path if entry != folder]


def _run_next():  # type: ignore[no-untyped-def]  # noqa: ANN202
    """Import the `sitecustomize` that this one hides; what it raises is Python's to report, as without us."""
    own = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401, PLC0415 - another of that name
    except ImportError as error:
        if getattr(error, "name", None) != "sitecustomize":
            raise
        if own is not None:
            sys.modules["sitecustomize"] = own


if sys.version_info >= (3, 8) and (
    os.environ.get("OOMDOCTOR_RUN_DIRECTORY") or os.environ.get("OOMDOCTOR_TRIAL_SOCKET")
):
    _start_hook()  # type: ignore[no-untyped-call]
_leave_path()  # type: ignore[no-untyped-call]
_run_next()  # type: ignore[no-untyped-call]
