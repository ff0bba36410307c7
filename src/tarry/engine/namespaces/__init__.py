"""Settings of tenants, namespaces and topics: the policies in force there, and the catalogue."""
