"""One target on many cards and under many variants: a pool of workers, and traces placed on simulated allocators."""
