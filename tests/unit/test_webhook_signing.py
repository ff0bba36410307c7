"""Standard Webhooks signatures, against HMAC written out by its definition and a published vector."""

import base64
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarry.outlets.webhook import BadSignature, verify
from tarry.outlets.webhook.signing import decode_secret, sign

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
OTHER = "whsec_" + base64.b64encode(b"another secret, 28 bytes....").decode()
NOW_MS = 1_700_000_000_123
BODY = b'{"hello": 1}\xff'


def hmac_by_definition(key: bytes, content: bytes) -> bytes:
    """RFC 2104, for keys no longer than a block."""
    padded = key.ljust(64, b"\0")
    inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in padded) + content).digest()
    return hashlib.sha256(bytes(byte ^ 0x5C for byte in padded) + inner).digest()


def signed(
    body: bytes = BODY, secrets: tuple[str, ...] = (SECRET,), at_s: int = NOW_MS // 1000
) -> dict[str, str]:
    return {
        "Webhook-Id": "m1",
        "webhook-timestamp": str(at_s),
        "WEBHOOK-SIGNATURE": sign([decode_secret(each) for each in secrets], "m1", at_s, body),
    }


def test_the_published_vector() -> None:
    key = decode_secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    signature = sign([key], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@given(st.binary(min_size=24, max_size=64), st.binary(max_size=200), st.integers(0, 2**40))
def test_against_the_definition(key: bytes, body: bytes, timestamp_s: int) -> None:
    expected = hmac_by_definition(key, b"msg_1." + str(timestamp_s).encode() + b"." + body)
    assert sign([key], "msg_1", timestamp_s, body) == "v1," + base64.b64encode(expected).decode()


def test_a_signature_for_each_key() -> None:
    both = signed(secrets=(SECRET, OTHER))["WEBHOOK-SIGNATURE"].split(" ")
    assert len(both) == 2
    assert both[0] == signed(secrets=(SECRET,))["WEBHOOK-SIGNATURE"]
    assert both[1] == signed(secrets=(OTHER,))["WEBHOOK-SIGNATURE"]


def test_verify_returns_the_id_with_any_of_the_secrets() -> None:
    assert verify([SECRET], signed(), BODY, now_ms=NOW_MS) == "m1"
    assert verify([OTHER, SECRET], signed(), BODY, now_ms=NOW_MS) == "m1"
    assert verify([OTHER], signed(secrets=(SECRET, OTHER)), BODY, now_ms=NOW_MS) == "m1"


@pytest.mark.parametrize("skew_s", [-300, 0, 300])
def test_verify_tolerates_some_skew(skew_s: int) -> None:
    now_ms = NOW_MS // 1000 * 1000
    assert verify([SECRET], signed(at_s=now_ms // 1000 + skew_s), BODY, now_ms=now_ms) == "m1"


@pytest.mark.parametrize("skew_s", [-301, 301])
def test_verify_refuses_old_and_future_requests(skew_s: int) -> None:
    now_ms = NOW_MS // 1000 * 1000
    with pytest.raises(BadSignature, match="too far"):
        verify([SECRET], signed(at_s=now_ms // 1000 + skew_s), BODY, now_ms=now_ms)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"Webhook-Id": "m2"}, "no signature"),
        ({"webhook-timestamp": str(NOW_MS // 1000 + 1)}, "no signature"),
        ({"webhook-timestamp": "soon"}, "not a number"),
        ({"webhook-timestamp": "-5"}, "not a number"),
        ({"webhook-timestamp": "9" * 5000}, "not a number"),
        ({"webhook-timestamp": "\u0661\u0667"}, "not a number"),
        ({"WEBHOOK-SIGNATURE": ""}, "missing"),
        ({"WEBHOOK-SIGNATURE": "v1,"}, "no signature"),
        ({"WEBHOOK-SIGNATURE": "v1,é"}, "no signature"),
        ({"WEBHOOK-SIGNATURE": signed()["WEBHOOK-SIGNATURE"].replace("v1,", "v2,")}, "no signature"),
        ({"Webhook-Id": ""}, "missing"),
    ],
)
def test_verify_refuses_what_was_changed(change: dict[str, str], match: str) -> None:
    with pytest.raises(BadSignature, match=match):
        verify([SECRET], signed() | change, BODY, now_ms=NOW_MS)


def test_verify_refuses_another_body_and_another_secret() -> None:
    with pytest.raises(BadSignature, match="no signature"):
        verify([SECRET], signed(), BODY + b" ", now_ms=NOW_MS)
    with pytest.raises(BadSignature, match="no signature"):
        verify([OTHER], signed(), BODY, now_ms=NOW_MS)
    with pytest.raises(BadSignature, match="no signature"):
        verify([], signed(), BODY, now_ms=NOW_MS)


@pytest.mark.parametrize(
    "secret",
    [
        "",
        "hunter2hunter2",
        "whsec_",
        "whsec_!!!!",
        SECRET[:10] + "!!!!" + SECRET[10:],
        "whsec_" + "QUJD",
        "whsec_" + base64.b64encode(bytes(65)).decode(),
    ],
)
def test_bad_secrets_are_refused_without_showing_them(secret: str) -> None:
    with pytest.raises(ValueError, match="webhook secret") as caught:
        decode_secret(secret)
    hidden = secret.removeprefix("whsec_")
    assert not hidden or hidden not in str(caught.value)
    assert caught.value.__cause__ is None
