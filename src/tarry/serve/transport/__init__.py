"""Sockets: listeners, connections and the bounds on both."""
