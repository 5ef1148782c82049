"""The version of torch, as its rules differ by it."""

from __future__ import annotations

from typing import Final

import torch

TORCH: Final = (int(torch.__version__.split(".")[0]), int(torch.__version__.split(".")[1]))
"""Major and minor version."""
