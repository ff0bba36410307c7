"""Bodies of records: where they are, how many are read together, and those that are read ahead."""
