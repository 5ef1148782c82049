"""Let each Python that tests start import torch and end without a search for garbage: together that takes a second.

Python imports a module of this name at its start; `running.py` puts this folder into PYTHONPATH. Before and after the
import nothing differs while a program runs, and at its end all that it registered for its end has run before. With
`running.WITHOUT_COMPILER` in its environment a program also trains as a worker does, without importing torch's compiler
for each optimizer.
"""

import atexit
import gc
import os
import sys


def end_quickly() -> None:
    """Leave all objects where they are, but for triton's, which complains of each that is left."""
    if "triton" not in sys.modules:
        gc.freeze()


class _QuickTorch:
    """Finds torch as the finders after it do, and imports it without a collection: it makes objects and no garbage."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):  # noqa: ANN001, ANN206
        """Give torch's spec once, None for all else."""
        if name != "torch":
            return None
        sys.meta_path.remove(cls)
        specs = (finder.find_spec(name, path, target) for finder in sys.meta_path)
        spec = next(filter(None, specs), None)
        run = getattr(spec and spec.loader, "exec_module", None)
        if run is not None and gc.isenabled():
            own = dict(vars(spec.loader))  # with another watcher's `exec_module`

            def exec_module(module) -> None:  # noqa: ANN001
                vars(spec.loader).pop("exec_module", None)
                vars(spec.loader).update(own)
                gc.disable()
                try:
                    run(module)
                    if os.environ.get("OOMDOCTOR_TEST_WITHOUT_COMPILER"):
                        _defer_compiler()
                finally:
                    gc.enable()

            spec.loader.exec_module = exec_module
        return spec


def _defer_compiler() -> None:
    """Import the worker's stand-in for `torch._dynamo` by its path: the package is not for every program."""
    from importlib.util import module_from_spec, spec_from_file_location

    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120
    spec = spec_from_file_location("compiler_stubs", f"{root}/oomdoctor/engines/trace/compiler_stubs.py")
    assert spec is not None
    assert spec.loader is not None
    stubs = module_from_spec(spec)
    spec.loader.exec_module(stubs)
    stubs.defer_dynamo()


sys.meta_path.insert(0, _QuickTorch)
atexit.register(end_quickly)  # the first that is registered is the last that runs
