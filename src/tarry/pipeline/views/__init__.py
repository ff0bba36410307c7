"""The views of Tarry's tables and ledger for people: `scheduled`, `history` and `ledger`."""
