"""Schedules that repeat: when their occurrences are. Pure arithmetic on milliseconds, without a clock and without zone files."""
