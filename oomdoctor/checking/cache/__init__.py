"""Answers of earlier checks, used again where nothing that could change them has changed."""
