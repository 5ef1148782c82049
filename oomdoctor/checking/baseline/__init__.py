"""What a model needed when the team last agreed to it: the file that is committed, and what has moved since."""
