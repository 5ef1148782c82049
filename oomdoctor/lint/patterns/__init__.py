"""Analyses that several rules share."""
