"""Pulsar's administration over HTTP: what `pulsar-admin` asks for, for what is served here."""
