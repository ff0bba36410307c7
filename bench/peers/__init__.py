"""Peers: other servers that deliver later, measured in the same run with the same load, in their durable settings."""
