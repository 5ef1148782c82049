"""Read text: an error message, a traceback, a log of any length."""
