"""The user's file: how it is named, how it is imported, and what it must hold.

`reference` is for the parent process and never imports torch; the other modules are for the worker.
"""
