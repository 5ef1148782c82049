"""Why memory ran out: what a log, a message or a snapshot says, what follows from it, and what to change."""
