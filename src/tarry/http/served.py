"""An operation where a door serves it: a row for the routes, with the right that it requires and its endpoint."""

from typing import NamedTuple

from tarry.core.tenants.rights import Right
from tarry.http.application import Endpoint


class Served(NamedTuple):
    """One method of one path."""

    method: str
    path: str
    right: Right
    """The role and the namespaces that it requires; whoever finds the row checks that before the body is read."""
    endpoint: Endpoint
    head: bool = True
    """Whether what a GET serves is served to a HEAD."""
