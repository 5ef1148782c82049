"""The search for the largest micro-batch, and the trials it runs."""
