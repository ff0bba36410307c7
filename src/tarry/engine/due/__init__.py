"""When versions are due: the wheel, the tail and the index, and due messages as columns."""
