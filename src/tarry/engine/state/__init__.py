"""State: what the records add up to, and how a start arrives at it."""
