"""Sets and maps of seqs and ids, for many at once."""
