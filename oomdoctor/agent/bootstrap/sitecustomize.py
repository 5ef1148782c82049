"""Start the agent in a Python process whose PYTHONPATH begins with this folder.

Python imports a module of this name at start, and finds this one because its folder is first in PYTHONPATH. It makes
itself unseen: its folder leaves `sys.path`, and the `sitecustomize` that Python would have found without us runs as it
would have. Any Python may come across this file, so it is written for all of them; the agent is for 3.8 and later.
"""

# ruff: noqa: INP001 - a folder for PYTHONPATH, not a package

import os
import sys

_FOLDER = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib takes longer than the agent


def _start_agent():  # type: ignore[no-untyped-def]  # noqa: ANN202 - older Pythons do not know annotations
    """Start the agent; whatever fails here is no business of the program's."""
    writes = sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # this folder belongs to another Python's installation
    try:
        _load_agent().install()  # type: ignore[no-untyped-call]
    except Exception:  # noqa: BLE001 - a crash of ours must not be seen
        sys.modules.pop("oomdoctor_agent", None)
    finally:
        sys.dont_write_bytecode = writes


def _load_agent():  # type: ignore[no-untyped-def]  # noqa: ANN202
    """Import the folder above this one as the package `oomdoctor_agent`, which is nowhere in `sys.path`."""
    import _frozen_importlib  # noqa: PLC0415 - loaded in every Python; `importlib.util` would load more
    import _frozen_importlib_external  # noqa: PLC0415

    folder = os.path.dirname(_FOLDER)  # noqa: PTH120
    spec = _frozen_importlib_external.spec_from_file_location(
        "oomdoctor_agent", folder + "/__init__.py", submodule_search_locations=[folder]
    )
    module = _frozen_importlib.module_from_spec(spec)  # type: ignore[arg-type]
    sys.modules["oomdoctor_agent"] = module
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


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
    _start_agent()  # type: ignore[no-untyped-call]
sys.path[:] = [entry for entry in sys.path if entry != _FOLDER]
_run_next()  # type: ignore[no-untyped-call]
