"""Peers' own test suites, run against a server of this tree: `make peers`, or `python -m tests.peers --only NAME`.

A suite is a module in `suites/` with a `SUITE` (see `suite.Suite`). None of a peer's code is in this tree: a suite
brings it through its language's package client, into `.cache/peers`. The outcome of its last run is in
`results/NAME.json`, the reason for each case that does not pass in `reasons/NAME.toml`, and both together are the table in
`docs/conformance.md`. Pytest collects nothing of this; `tests/unit/test_peers.py` tests what is pure here.
"""
