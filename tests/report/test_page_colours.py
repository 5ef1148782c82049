"""The colours of the categories: told apart in both schemes and on paper, by colour-blind readers too."""

from __future__ import annotations

import math
import re
from itertools import combinations, pairwise

import pytest
from running import ROOT

STYLE = (ROOT / "oomdoctor" / "report" / "templates" / "style.css").read_text(encoding="utf-8")
NAMES = ("weights", "gradients", "optimizer", "activations", "input", "workspace", "other")
"""Categories from the bottom of the stack."""

SCHEMES = dict(zip(("light", "dark", "print"), re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL), strict=True))
VISIONS = {
    "full": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
"""What colours look like, as matrices of linear RGB: Machado, Oliveira and Fernandes, 2009, at full severity."""

TO_XYZ = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
WHITE = (0.95047, 1.0, 1.08883)


def colours(scheme: str) -> dict[str, tuple[float, ...]]:
    """Each category's colour in a scheme, as linear RGB."""
    found = dict(re.findall(r"--(\w+): #(\w{6})", SCHEMES[scheme]))
    return {name: tuple(linear(int(found[name][at : at + 2], 16) / 255) for at in (0, 2, 4)) for name in NAMES}


def linear(part: float) -> float:
    """A part of sRGB without its gamma."""
    return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4


def times(matrix: tuple[tuple[float, ...], ...], vector: tuple[float, ...]) -> tuple[float, ...]:
    """A matrix times a vector."""
    return tuple(sum(left * right for left, right in zip(row, vector, strict=True)) for row in matrix)


def lab(colour: tuple[float, ...]) -> tuple[float, float, float]:
    """A colour of linear RGB where equal distances look about equal: CIELAB."""
    inside = tuple(min(1.0, max(0.0, part)) for part in colour)
    x, y, z = (part / white for part, white in zip(times(TO_XYZ, inside), WHITE, strict=True))
    x, y, z = (part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116 for part in (x, y, z))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_categories_are_told_apart(scheme: str, vision: str) -> None:
    """No two categories look alike: four times what a trained eye can just tell apart lies between any two."""
    seen = {name: lab(times(VISIONS[vision], colour)) for name, colour in colours(scheme).items()}
    assert [(one, other) for one, other in combinations(NAMES, 2) if math.dist(seen[one], seen[other]) < 10] == []


@pytest.mark.parametrize("scheme", SCHEMES)
def test_neighbours_differ_without_colour(scheme: str) -> None:
    """In a grey print, what lies on each other in the stack is lighter or darker."""
    lightness = {name: lab(colour)[0] for name, colour in colours(scheme).items()}
    assert [(one, other) for one, other in pairwise(NAMES) if abs(lightness[one] - lightness[other]) < 8] == []
