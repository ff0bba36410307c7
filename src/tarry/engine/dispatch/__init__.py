"""Dispatch: due messages go out, into topics in bursts, to outlets as flights."""
