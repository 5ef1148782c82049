"""One target on many cards: a few traces tell what a step does, and a simulated allocator places it on each card."""
