"""Entries that wait for an instant, in key order: the timer queue, its sorted runs, and the slots and lanes of due time."""
