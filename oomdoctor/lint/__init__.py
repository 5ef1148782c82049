"""Static analysis of training scripts: what will run out of memory, or silently train wrongly, before it runs."""
