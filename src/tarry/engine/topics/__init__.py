"""Tarry's own topics: entries go in, subscriptions give them out, and what nobody needs any more is let go."""
