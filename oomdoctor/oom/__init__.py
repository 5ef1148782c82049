"""Which errors mean that memory ran out: one table, and what decides by it."""
