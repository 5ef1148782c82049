"""Verify that accumulated micro-batches train what the whole batch would."""
