"""The user's own command under a hook that notices when memory runs out."""
