"""`make demo`: every door, its real clients, a crash in the middle, and the audit's verdict."""
