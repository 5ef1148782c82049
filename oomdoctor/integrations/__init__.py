"""Sizes for programs of other libraries: sweeps of Optuna and Ray, trainers of Lightning and transformers.

Each module needs its library, and none is loaded by `import oomdoctor`.
"""

from __future__ import annotations

from importlib import import_module

from oomdoctor.errors import UsageError


class MissingPackageError(UsageError, ImportError):
    """A package that an integration is for is not installed."""


def need(package: str, extra: str) -> None:
    """See that a package is installed.

    Args:
        package: The module that is imported, such as `ray.tune`.
        extra: The extra of oomdoctor that installs it.

    Raises:
        MissingPackageError: It is not; the hint is the command that installs it.
    """
    try:
        import_module(package)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package.partition(".")[0]:
            raise  # it is installed, and lacks something itself
        raise MissingPackageError(
            f"`{package}` is not installed in this Python", hint=f"pip install 'oomdoctor[{extra}]'"
        ) from None
