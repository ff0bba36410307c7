"""Suites, one module each, with a `SUITE` in it."""
