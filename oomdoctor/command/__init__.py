"""A training command as the target: the user's own script is the trial, and the agent in its Pythons measures it."""
