"""The journal: units of records on their way into the ledger, each decided when it is enqueued."""
