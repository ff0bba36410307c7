"""Upkeep, done once in a while: marks, flushes of the registry, reclaiming of segments, backups."""
