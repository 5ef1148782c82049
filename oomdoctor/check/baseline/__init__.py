"""The baseline: the figures that a team last agreed to, in a file that is committed, and what has moved since."""
