"""Which cards a build of torch has kernels for."""

from __future__ import annotations


def has_kernels(architectures: list[str], capability: tuple[int, int]) -> bool:
    """Whether this torch can run on such a card: kernels for it, or intermediate code that the driver compiles."""
    for name in architectures:
        kind, _, number = name.rstrip("af").partition("_")
        built_for = divmod(int(number), 10)
        if built_for <= capability and (kind == "compute" or built_for[0] == capability[0]):
            return True
    return False
