"""The registry: a SQLite view of live state."""
