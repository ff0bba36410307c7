"""The ways in which a broker component says no.

    ComponentError
    ├── UnknownKind         there is no such kind of component here
    ├── Misconfigured       a field of the component's metadata is missing or wrong; names the field
    ├── LibraryMissing      the broker's library is not installed; says how to
    ├── Unreachable         the broker cannot be reached or did not answer; another time it may
    ├── Denied              the broker knows us not, or does not allow it
    ├── TopicMissing        there is no such topic and the component may not make it
    └── NeverTaken          the broker will never take this message: too large, a name that cannot be

Their texts hold neither data nor secrets.
"""

from tarry.core.errors import TarryError


class ComponentError(TarryError):
    """The root of the tree above."""

    code = "component"


class UnknownKind(ComponentError):
    """There is no such kind of component here."""

    code = "component-unknown"


class Misconfigured(ComponentError):
    """A field of a component's metadata is missing or wrong."""

    code = "component-misconfigured"

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class LibraryMissing(ComponentError):
    """The broker's library is not installed."""

    code = "component-library"


class BrokerUnreachable(ComponentError):
    """The broker cannot be reached or did not answer. `uncertain`: the message may be there all the same."""

    code = "component-unreachable"

    def __init__(self, reason: str, *, uncertain: bool = False) -> None:
        super().__init__(reason)
        self.uncertain = uncertain


class Denied(ComponentError):
    """Wrong credentials, or not allowed to these."""

    code = "component-denied"


class TopicMissing(ComponentError):
    """There is no such topic, and the component may not make it."""

    code = "component-topic-missing"


class NeverTaken(ComponentError):
    """The broker will never take this message."""

    code = "component-never"
