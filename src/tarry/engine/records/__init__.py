"""The meaning of records, without any state: versions and their ends, entries, and the changes that a unit of them makes."""
