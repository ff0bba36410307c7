"""What people read from Tarry's tables and ledger: the views `scheduled`, `history` and `ledger`."""
