"""The operator's side of the API: status, figures, metrics, policies, the ledger and backups."""
