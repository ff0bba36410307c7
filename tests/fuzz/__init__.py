"""The fuzz campaign: every door of a real server is fed what it accepts, and what it should refuse."""
