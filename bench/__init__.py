"""The benchmark: Tarry beside its peers and beside the limits of the machine. `docs/benchmarks.md` says how to read it."""
