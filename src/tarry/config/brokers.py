"""Settings of brokers as destinations: `broker://component/topic`."""

from typing import Annotated

from msgspec import Meta

from tarry.config.table import Path, Section


class BrokerAllow(Section, frozen=True, kw_only=True):
    """The namespaces that may send to a component."""

    component: Annotated[str, Meta(min_length=1)]
    """The component's name, as its file says it."""
    namespaces: Annotated[tuple[str, ...], Meta(min_length=1)]
    """The namespaces (`tenant/namespace`) whose messages may go there; `["*"]` is all of them."""


class Brokers(Section, frozen=True, kw_only=True):
    """Brokers as destinations, by component files in Dapr's format."""

    resources_path: tuple[Path, ...] = ()
    """Folders or files with Dapr's components; by default those of `doors.dapr`."""
    app_id: Annotated[str, Meta(min_length=1, max_length=255, pattern="^[^/\\x00-\\x20]+$")] = "tarry"
    """The application as which components are used: their `scopes` must have it, if they have any."""
    allow: tuple[BrokerAllow, ...] = ()
    """Namespaces by component, each as a `[[brokers.allow]]` table. A component without one is open to nobody here."""
