"""What a memory snapshot holds."""
