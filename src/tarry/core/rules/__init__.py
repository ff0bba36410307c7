"""Rules: what may be accepted, and the policies that say so."""
