"""Trials of the user's file in a worker process: the protocol, both of its sides, one trial, and what is measured."""
