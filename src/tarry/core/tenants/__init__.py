"""Tenants: who may do what, by tokens and rights, and how much of a shared thing each may take."""
