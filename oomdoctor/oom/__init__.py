"""Out-of-memory errors: one table of them, and the classifier that decides by it."""
