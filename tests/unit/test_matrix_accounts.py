"""Owners of tokens: how long the homeserver's answer is believed, and for whom."""

from collections.abc import AsyncIterator

import pytest

from tarry.core.limits import MINUTE_MS
from tarry.doors.matrix.accounts import Accounts
from tarry.doors.matrix.errors import MatrixError
from tarry.doors.matrix.settings import MatrixSettings
from tarry.doors.matrix.wire import Account, MatrixRequest
from tarry.http.head import Fields, Head
from tarry.http.request import Request
from tarry.outlets.matrix.homeserver import Homeserver, HomeserverSettings
from tarry.testing.clock import SimulatedClock
from tests.unit.matrix_kit import TinyHomeserver

ANN = Account("@ann:example.org", "ANNSPHONE")


@pytest.fixture
async def homeserver() -> AsyncIterator[TinyHomeserver]:
    homeserver = TinyHomeserver()
    await homeserver.start()
    yield homeserver
    await homeserver.stop()


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
async def accounts(homeserver: TinyHomeserver, clock: SimulatedClock) -> AsyncIterator[Accounts]:
    asked = Homeserver(HomeserverSettings(url=homeserver.url))
    settings = MatrixSettings(token_fresh_ms=MINUTE_MS, token_kept_ms=10 * MINUTE_MS)
    yield Accounts(asked, settings, clock)
    await asked.close()


def request(token: str = "ann-token", query: bytes = b"") -> MatrixRequest:
    fields = Fields(
        [(b"host", b"x"), (b"authorization", b"Bearer " + token.encode())], keep_alive=True, old=False
    )
    return MatrixRequest(Request(Head("GET", b"/", query, fields), "127.0.0.1"), {})


async def seen(accounts: Accounts, request: MatrixRequest) -> Account | int:
    """The account, or the status of the refusal; what is known without asking must be the same."""
    known = accounts.known(request)
    try:
        account = await accounts.of(request)
    except MatrixError as error:
        assert known is None
        return error.status
    assert known in (None, account)
    return account


async def test_an_answer_is_believed_for_a_while_and_then_asked_for_again(
    homeserver: TinyHomeserver, accounts: Accounts, clock: SimulatedClock
) -> None:
    assert await seen(accounts, request()) == ANN
    del homeserver.users["ann-token"]
    clock.advance(MINUTE_MS - 1)
    assert await seen(accounts, request()) == ANN
    assert homeserver.whoami_asked == 1
    clock.advance(1)
    assert await seen(accounts, request()) == 401


async def test_a_clock_that_is_set_back_makes_no_answer_good_for_longer(
    homeserver: TinyHomeserver, accounts: Accounts, clock: SimulatedClock
) -> None:
    assert await seen(accounts, request()) == ANN
    del homeserver.users["ann-token"]
    clock.jump(-1)
    assert await seen(accounts, request()) == 401


async def test_while_the_homeserver_is_down_its_last_answer_is_kept_for_longer_but_not_for_ever(
    homeserver: TinyHomeserver, accounts: Accounts, clock: SimulatedClock
) -> None:
    assert await seen(accounts, request()) == ANN
    await homeserver.stop()
    clock.advance(10 * MINUTE_MS - 1)
    assert await seen(accounts, request()) == ANN
    clock.advance(1)
    assert await seen(accounts, request()) == 503


async def test_a_service_that_speaks_for_itself_and_for_others_has_an_account_for_each(
    homeserver: TinyHomeserver, accounts: Accounts
) -> None:
    homeserver.users["bridge"] = ("@bridge:example.org", "BRIDGE")
    homeserver.masquerades["bridge"] = {"@a:example.org", "@b:example.org"}
    for _ in range(2):
        assert await seen(accounts, request("bridge")) == Account("@bridge:example.org", "BRIDGE")
        for user in "ab":
            query = f"user_id=@{user}:example.org".encode()
            assert await seen(accounts, request("bridge", query)) == Account(f"@{user}:example.org")
    assert homeserver.whoami_asked == 3
