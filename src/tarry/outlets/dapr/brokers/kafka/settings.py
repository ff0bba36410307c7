"""The Kafka that a component connects to, its credentials there, and how it reads."""

import re
from typing import Any, Final

from msgspec import Struct

from tarry.outlets.dapr.errors import Misconfigured
from tarry.outlets.dapr.properties import Properties

AUTH_TYPES: Final = ("none", "password", "mtls", "certificate", "oidc")
_MECHANISMS: Final = {"PLAINTEXT": "PLAIN", "SHA-256": "SCRAM-SHA-256", "SHA-512": "SCRAM-SHA-512"}


class KafkaSettings(Struct, frozen=True, kw_only=True):
    """The component's metadata, in the words of the library."""

    client: dict[str, Any]
    group: str
    initial_offset: str
    retry_ms: int
    retries: bool
    heartbeat_ms: int
    session_ms: int
    max_message_bytes: int
    escapes_headers: bool
    excluded: re.Pattern[str] | None
    """Headers that are no metadata."""


def read_settings(properties: Properties) -> KafkaSettings:
    """Read the metadata; raises `Misconfigured`."""
    brokers = ",".join(one.strip() for one in properties.needed("brokers").split(",") if one.strip())
    if not brokers:
        raise Misconfigured("brokers", "is missing")
    client: dict[str, Any] = {
        "bootstrap.servers": brokers,
        "client.id": properties.text("clientID", "sarama"),
        "socket.connection.setup.timeout.ms": 5_000,
        "reconnect.backoff.max.ms": 1_000,
        "log_level": 0,  # what matters comes as an error
    } | _security(properties)
    excluded = properties.text("excludeHeaderMetaRegex")
    try:
        pattern = re.compile(excluded) if excluded else None
    except re.error as error:
        raise Misconfigured("excludeHeaderMetaRegex", f"is no regular expression: {error}") from None
    return KafkaSettings(
        client=client,
        group=properties.text("consumerGroup"),
        initial_offset="earliest"
        if properties.one_of("initialOffset", ("newest", "oldest"), "newest") == "oldest"
        else "latest",
        retry_ms=properties.duration_ms("consumeRetryInterval", 100, bare_ms=1),
        retries=properties.flag("consumeRetryEnabled", True),
        heartbeat_ms=properties.duration_ms("heartbeatInterval", 3_000, bare_ms=1_000),
        session_ms=properties.duration_ms("sessionTimeout", 10_000, bare_ms=1_000),
        max_message_bytes=properties.number("maxMessageBytes", 1_048_576, least=1_000, most=1_000_000_000),
        escapes_headers=properties.flag("escapeHeaders"),
        excluded=pattern,
    )


def _security(properties: Properties) -> dict[str, Any]:
    auth = _auth_type(properties)
    tls = auth != "none" and not properties.flag("disableTls")
    options: dict[str, Any] = {}
    if auth == "password":
        mechanism = properties.one_of("saslMechanism", _MECHANISMS, "PLAINTEXT")
        options = {
            "sasl.mechanism": _MECHANISMS[mechanism],
            "sasl.username": properties.needed("saslUsername", "is needed for authType password"),
            "sasl.password": properties.needed("saslPassword", "is needed for authType password"),
        }
    elif auth == "oidc":
        options = {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.token.endpoint.url": properties.needed("oidcTokenEndpoint"),
            "sasl.oauthbearer.client.id": properties.needed("oidcClientID"),
            "sasl.oauthbearer.client.secret": properties.needed("oidcClientSecret"),
            "sasl.oauthbearer.scope": properties.text("oidcScopes", "openid").replace(",", " "),
        }
    elif auth == "mtls" and not tls:
        raise Misconfigured("disableTls", "contradicts authType mtls; leave it out")
    elif auth == "certificate":
        properties.needed("caCert", "is needed for authType certificate")
    sasl = bool(options)
    options["security.protocol"] = ("SASL_" if sasl else "") + ("SSL" if tls else "PLAINTEXT")
    return options | (_certificates(properties) if tls else {})


def _auth_type(properties: Properties) -> str:
    if not properties.text("authType") and properties.text("authRequired"):
        if not properties.flag("authRequired"):
            return "none"
        return "password" if properties.text("saslPassword") else "mtls"
    properties.needed("authType", f"is missing; it is one of {', '.join(AUTH_TYPES)}")
    return properties.one_of("authType", AUTH_TYPES, "none")


def _certificates(properties: Properties) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for field, option in (
        ("caCert", "ssl.ca.pem"),
        ("clientCert", "ssl.certificate.pem"),
        ("clientKey", "ssl.key.pem"),
    ):
        if text := properties.text(field):
            if "-----BEGIN" not in text:
                raise Misconfigured(field, "is not PEM")
            options[option] = text
    if ("ssl.certificate.pem" in options) != ("ssl.key.pem" in options):
        missing = "clientKey" if "ssl.certificate.pem" in options else "clientCert"
        raise Misconfigured(missing, "is missing: certificate and key come together")
    if properties.flag("skipVerify"):
        options["enable.ssl.certificate.verification"] = False
    return options
