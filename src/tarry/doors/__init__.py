"""Doors: the protocols through which messages and commands come in. None of them knows another."""
