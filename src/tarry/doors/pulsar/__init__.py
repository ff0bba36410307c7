"""Apache Pulsar: its binary protocol, spoken to unmodified clients."""
