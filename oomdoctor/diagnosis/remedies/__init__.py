"""What to change: each remedy says what it would free here, what it costs, and when it is pointless."""
