"""Doubles that are shipped, so that users can test as Tarry is tested: a simulated clock, disk, outlet and world.

They are deterministic: everything random comes from the generator that is passed in.
"""
