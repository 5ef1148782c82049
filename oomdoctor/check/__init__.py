"""The check: entries of the configuration, each probed and held to its limits and to the baseline."""
