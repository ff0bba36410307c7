"""The endpoints that show a user's delayed events: the lists of MSC4140's draft, and one event as in the merged version.

A page holds up to ten of each kind. One token goes on in both arrays; it holds nothing but places in the two orders, so that it
stays good while events come, go and restart.
"""

from typing import Any, Final

from tarry.core.errors import Invalid, NotFound, RateLimited, TarryError
from tarry.core.messages.lifecycle import FINALISED
from tarry.core.messages.message import MessagePage, MessageView, OwnedQuery
from tarry.core.tenants.rates import Rates
from tarry.doors.matrix.dialects import SEED
from tarry.doors.matrix.errors import MatrixError, explain, not_found
from tarry.doors.matrix.filtered import asks_to_filter, filtered_page
from tarry.doors.matrix.parts import Parts
from tarry.doors.matrix.settings import EVENTS
from tarry.doors.matrix.shown import event_body, finalised_body, merged_body
from tarry.doors.matrix.wire import Account, MatrixRequest, ok
from tarry.http.response import Response

PAGE: Final = 10
"""The size of a page, as MSC4140 recommends."""
MAX_DELAY_IDS: Final = 100
STATUSES: Final = ("scheduled", "finalised")
_DONE: Final = "-"
"""In a token: there is no more of this kind."""


class Lists:
    """The endpoints that show events to their owner."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._engine = parts.engine
        self._rates = Rates()

    def _asker(self, request: MatrixRequest) -> Account:
        """The account that asks, if not too often. By user: an address may be that of many."""
        account = request.account
        per_second = self._parts.settings.list_per_second
        if per_second:
            now_ms = self._parts.clock.now_ms()
            wait_ms = self._rates.wait_ms(("list", account.user_id), per_second, now_ms)
            if wait_ms:
                raise explain(RateLimited(wait_ms))
        return account

    # The seed

    async def both(self, request: MatrixRequest) -> Response:
        """GET …/delayed_events."""
        account = self._asker(request)
        query = request.query
        if asks_to_filter(query):
            return ok(await filtered_page(self._engine, account.user_id, query, request.unstable))
        statuses = [value for name, value in query if name == "status"] or list(STATUSES)
        if any(status not in STATUSES for status in statuses):
            raise MatrixError(400, "M_UNKNOWN", "The status is not scheduled or finalised.")
        wanted = [value for name, value in query if name == "delay_id"]
        if wanted:
            pages = await self._named(account, wanted)
            next_batch = None
        else:
            pages, next_batch = await self._pages(account, statuses, request.parameter("from"))
        return ok(_seed_body(pages, statuses, next_batch, request.unstable))

    async def _pages(
        self, account: Account, statuses: list[str], token: str | None
    ) -> tuple[dict[str, list[MessageView]], str | None]:
        places = read_token(token)
        pages: dict[str, list[MessageView]] = {status: [] for status in STATUSES}
        for status in STATUSES:
            if status in statuses and places[status] != _DONE:
                page = await self._page(account, status, places[status] or None)
                pages[status] = page.messages
                places[status] = page.next_page or _DONE
        more = any(places[status] != _DONE for status in statuses)
        return pages, make_token(places) if more else None

    async def _page(self, account: Account, status: str, page: str | None) -> MessagePage:
        query = OwnedQuery(owner=account.user_id, state=status, namespace=EVENTS, limit=PAGE, page=page)  # type: ignore[arg-type]
        try:
            return await self._engine.list_owned(query)
        except Invalid:
            raise _bad_token() from None
        except TarryError as error:
            raise explain(error) from None

    async def _named(self, account: Account, ids: list[str]) -> dict[str, list[MessageView]]:
        """The events of these ids that are the asker's own, in the order of the lists."""
        if len(ids) > MAX_DELAY_IDS:
            raise MatrixError(400, "M_INVALID_PARAM", f"More than {MAX_DELAY_IDS} delay ids.")
        views = [view for id_ in dict.fromkeys(ids) if (view := await self._own(account, id_)) is not None]
        return {
            "scheduled": sorted(
                (view for view in views if view.state not in FINALISED), key=lambda view: view.due_at_ms or 0
            ),
            "finalised": sorted(
                (view for view in views if view.state in FINALISED), key=lambda view: -(view.finalised_at_ms or 0)
            ),
        }  # fmt: skip

    async def _own(self, account: Account, id_: str) -> MessageView | None:
        try:
            view = await self._engine.get(id_)
        except NotFound:
            return None
        except TarryError as error:
            raise explain(error) from None
        return view if view.owner == account.user_id and view.namespace == EVENTS else None

    async def filtered(self, request: MatrixRequest) -> Response:
        """GET /unstable/org.matrix.msc4486/delayed_events."""
        account = self._asker(request)
        return ok(await filtered_page(self._engine, account.user_id, request.query, request.unstable))

    # As merged

    async def single(self, request: MatrixRequest) -> Response:
        """GET …/delayed_events/{id}."""
        account = self._asker(request)
        view = await self._own(account, request.params["delay"])
        if view is None:
            raise not_found()
        return ok(merged_body(view, request.unstable))


def _seed_body(
    pages: dict[str, list[MessageView]], statuses: list[str], next_batch: str | None, unstable: bool
) -> dict[str, Any]:
    body: dict[str, Any] = {}
    if "scheduled" in statuses:
        body["scheduled"] = [event_body(view, SEED) for view in pages["scheduled"]]
        if unstable:
            # Under this name Synapse has them, and clients look there.
            body["delayed_events"] = body["scheduled"]
    if "finalised" in statuses:
        body["finalised"] = [finalised_body(view, unstable) for view in pages["finalised"]]
    if next_batch is not None:
        body["next_batch"] = next_batch
    return body


# Tokens


def make_token(places: dict[str, str]) -> str:
    """One token for both arrays."""
    return ".".join(places[status] for status in STATUSES)


def read_token(token: str | None) -> dict[str, str]:
    """Where to go on in each array; an empty place is the beginning."""
    places = ["", ""] if token is None else token.split(".")
    if len(places) != len(STATUSES) or (token is not None and all(place == _DONE for place in places)):
        raise _bad_token()
    return dict(zip(STATUSES, places, strict=True))


def _bad_token() -> MatrixError:
    return MatrixError(400, "M_INVALID_PARAM", "The token is not one that was given out.")
