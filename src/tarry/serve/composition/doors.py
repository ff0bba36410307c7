"""The doors beside the native API, as the composition root handles them: each is wired in a module of its own here."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from tarry.core.messages.delivery import Outlet
from tarry.core.telemetry.figure import Figure
from tarry.engine.engine import Engine
from tarry.http.application import Application


class Door(Protocol):
    """A protocol's way in with the ways out that belong to it. Made, bound, started, stopped, closed, in this order."""

    @property
    def outlets(self) -> Mapping[str, Outlet]:
        """The ways out that it brings, by the scheme of their destinations."""

    @property
    def mounts(self) -> Mapping[str, Application]:
        """The door's applications on the native API's port, by the beginning of the path; access is their own business."""

    @property
    def figures(self) -> Sequence[Figure]:
        """The door's figures for the metrics."""

    def bind(self) -> list[str]:
        """Take its addresses, so that a taken one is told before anything is opened; gives them as URLs."""

    async def start(self, engine: Engine) -> None:
        """Begin to accept."""

    def renew(self) -> None:
        """Show new connections the certificates that are in their files now; raises `ListenError`."""

    def revoke(self) -> None:
        """End sessions and connections of tokens that are not in force any more."""

    async def stop(self) -> None:
        """Accept no more, and let the requests under way end."""

    async def close(self) -> None:
        """Close what the outlets hold open. The engine has ended its attempts."""
