"""Let each Python that tests start end without a last search for garbage: with torch in it that takes a second.

Python imports a module of this name at its start; `running.py` puts this folder into PYTHONPATH. While a program runs
nothing differs, and at its end all that it registered for its end has run before.
"""

import atexit
import gc
import sys


def end_quickly() -> None:
    """Leave all objects where they are, but for triton's, which complains of each that is left."""
    if "triton" not in sys.modules:
        gc.freeze()


atexit.register(end_quickly)  # the first that is registered is the last that runs
