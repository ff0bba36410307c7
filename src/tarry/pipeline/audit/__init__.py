"""The audit: whether the books balance, judged from the ledger, the index and the history alone."""
