"""What a file of Python holds: its functions, and what its names mean."""
