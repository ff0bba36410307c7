"""The composition root, and the wiring of each door."""
