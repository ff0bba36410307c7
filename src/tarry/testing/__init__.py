"""Doubles that are shipped, so that users can test against Tarry as Tarry is tested: a simulated disk and clock.

They are deterministic: everything random comes from the generator that is passed in.
"""
