"""The user's file: how it is named, how it is imported, and what it must hold. `reference` alone is free of torch."""
