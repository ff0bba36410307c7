"""The webhook outlet: a due message becomes a signed CloudEvent in an HTTP POST.

outlet      sends: the only part that speaks HTTP
target      what a destination URL is, and how it is read (once, by one parser)
addresses   which addresses the outlet may connect to
sockets     the place where that is enforced: no socket is opened but through it
resolver    names to addresses, in threads of its own
event       message to CloudEvent: headers and body
signing     Standard Webhooks signatures, and `verify` for receivers
verdict     status, `Retry-After` and failures to a verdict
slots       how many deliveries are under way, by host and in all
settings    what an operator can set
"""

from typing import TYPE_CHECKING

from tarry.outlets.webhook.settings import WebhookSettings
from tarry.outlets.webhook.signing import BadSignature, verify

if TYPE_CHECKING:
    from tarry.outlets.webhook.outlet import WebhookOutlet

__all__ = ["BadSignature", "WebhookOutlet", "WebhookSettings", "verify"]


def __getattr__(name: str) -> object:
    """Load the outlet when it is asked for: reading a configuration must not wait for an HTTP client."""
    if name == "WebhookOutlet":
        from tarry.outlets.webhook.outlet import WebhookOutlet

        return WebhookOutlet
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
