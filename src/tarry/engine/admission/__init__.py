"""Admission: from what a door hands over to versions in the ledger, or to the reason why not."""
