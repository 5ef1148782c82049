"""One more trial, whose allocator history is read: memory by category and by module."""
