"""Messages: one by one, in batches over HTTP, and in batches staged as files."""
