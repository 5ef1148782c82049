"""GPUs: those of this machine, those of the catalogue, and the null GPU."""
