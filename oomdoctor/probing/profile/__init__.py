"""One trial more, of which the allocator's history is read: what memory is made of, by category and by module."""
