"""No view shows what lets anybody command a message or enter a receiver."""

import pytest

from tarry.core.messages.ids import Ids
from tarry.pipeline.views.masking import MASK, masked_address, masked_headers


@pytest.mark.parametrize(
    "name",
    [
        "Authorization", "proxy-authorization", "Cookie", "set-cookie", "X-Api-Key", "x_access_token", "access_token",
        "webhook-signature", "webhook-id", "X-Hub-Signature-256", "Idempotency-Key", "delay_id", "Delay-ID",
        "X-Secret", "db_password", "aws-session", "X-Auth-User",
    ],
)  # fmt: skip
def test_a_header_is_masked_by_its_name(name: str) -> None:
    assert masked_headers({name: "open sesame"}) == {name: MASK}


@pytest.mark.parametrize(
    "value",
    ["Bearer abc", "basic dXNlcg==", "syt_YWxpY2U_aBcDeFgH", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"],
)
def test_a_header_is_masked_by_its_value(value: str) -> None:
    assert masked_headers({"x": value}) == {"x": MASK}


def test_the_id_of_a_message_is_masked_wherever_it_stands_alone() -> None:
    assert masked_headers({"reply": Ids(bytes(32)).make(7, 1_794_740_400_000)}) == {"reply": MASK}


def test_other_headers_are_shown() -> None:
    headers = {"content-type": "application/json", "x-trace": "4bf92f", "basic": "no", "bearing": "north"}
    assert masked_headers(headers) == headers


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("persistent://public/default/orders", "persistent://public/default/orders"),
        ("https://example.org/hook", "https://example.org/hook"),
        ("https://example.org/hook?token=abc&n=1", f"https://example.org/hook?token={MASK}&n={MASK}"),
        ("https://me:secret@example.org:8443/hook?x", f"https://{MASK}@example.org:8443/hook?{MASK}"),
        ("https://example.org/a@b#secret", f"https://example.org/a@b#{MASK}"),
        (None, None),
    ],
)
def test_an_address_shows_no_way_in(address: str | None, shown: str | None) -> None:
    assert masked_address(address) == shown
