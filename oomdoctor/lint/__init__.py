"""Static analysis of training scripts: what will run out of memory, or silently train wrongly, before it runs.

The user's code is read, never imported. `source` and `code` say what a file holds and what its names mean, `flow` walks
it in the order in which it would run and notes what happens, and each file in `rules` looks for one mistake in that.
"""
