"""The core: pure values and rules. It does no I/O and imports nothing of the rest."""
