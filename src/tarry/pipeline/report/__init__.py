"""The report: what is coming, how late deliveries were, what failed and why, who has most of it."""
