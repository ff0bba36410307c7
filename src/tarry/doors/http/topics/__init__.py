"""Topics over HTTP: entries published, delayed and received, and the sessions of consumers."""
