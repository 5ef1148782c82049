"""Diagnose why memory ran out, from a log, an error message or a memory snapshot."""
