"""Reasoning that several rules share."""
