"""Wrong settings are found at the start, and secrets never shown."""

import msgspec
import pytest

from tarry.outlets.webhook import WebhookSettings

SECRET = "whsec_" + "QUJD" * 8


def test_the_defaults_are_valid_and_strict() -> None:
    settings = WebhookSettings()
    assert settings.allow == ()
    assert settings.mode == "binary"
    assert settings.total_timeout_ms == 10_000


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"total_timeout_ms": 0}, "total_timeout_ms"),
        ({"connect_timeout_ms": -1}, "connect_timeout_ms"),
        ({"queue_timeout_ms": 0}, "queue_timeout_ms"),
        ({"max_retry_after_ms": 0}, "max_retry_after_ms"),
        ({"max_connections": 0}, "max_connections"),
        ({"max_connections_per_host": 0}, "max_connections_per_host"),
        ({"event_source": ""}, "event_source"),
        ({"event_type": "a\nb"}, "event_type"),
        ({"user_agent": "ü"}, "user_agent"),
        ({"allow": ["10.0.0.1/8"]}, "10.0.0.1/8"),
        ({"deny": ["x.example"]}, "x.example"),
        ({"secrets": ["hunter2"]}, "whsec_"),
        ({"secrets_by_host": {"a.example": ["hunter2"]}}, "whsec_"),
        ({"secrets_by_host": {"A.example": [SECRET]}}, "lower case"),
        ({"mode": "batched"}, "mode"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_wrong_settings(changes: dict[str, object], match: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=match) as caught:
        msgspec.convert(changes, WebhookSettings)
    assert "hunter2" not in str(caught.value)


def test_secrets_are_not_shown() -> None:
    settings = WebhookSettings(secrets=(SECRET,), secrets_by_host={"a.example": (SECRET,)}, deny=("8.8.8.8",))
    assert "QUJD" not in repr(settings)
    assert "QUJD" not in str(settings)
    assert "8.8.8.8" in repr(settings)
