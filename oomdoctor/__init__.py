"""How big a batch fits, why it ran out, and what to change."""

__version__ = "0.1.0"
