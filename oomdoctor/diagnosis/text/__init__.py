"""What a text says: a message, a traceback, a log of any length."""
