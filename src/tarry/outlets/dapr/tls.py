"""Certificates that component files hold as PEM text."""

import ssl
import tempfile

from tarry.outlets.dapr.errors import Misconfigured
from tarry.outlets.dapr.properties import Properties


def client_context(
    properties: Properties,
    *,
    ca: str = "caCert",
    certificate: str = "clientCert",
    key: str = "clientKey",
) -> ssl.SSLContext:
    """How a client speaks TLS, with the certificates in these fields; the server's is always verified."""
    context = ssl.create_default_context()
    if text := properties.text(ca):
        try:
            context.load_verify_locations(cadata=text)
        except ssl.SSLError as error:
            raise Misconfigured(ca, f"is no PEM certificate: {error.reason}") from None
    given, private = properties.text(certificate), properties.text(key)
    if bool(given) != bool(private):
        raise Misconfigured(
            key if given else certificate, f"is missing beside {certificate if given else key}"
        )
    if given:
        # The library reads this from a file only; it is gone once it was read.
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
            file.write(f"{given}\n{private}\n")
            file.flush()
            try:
                context.load_cert_chain(file.name)
            except ssl.SSLError as error:
                raise Misconfigured(certificate, f"is no certificate with its key: {error.reason}") from None
    return context
