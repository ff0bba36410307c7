"""TLS as a client of a server: the system's authorities, and a certificate of one's own for a server that asks for one."""

import ssl
from typing import Final

CERT_VARIABLE: Final = "TARRY_TLS_CLIENT_CERT"
KEY_VARIABLE: Final = "TARRY_TLS_CLIENT_KEY"


def client_context(cert: str | None, key: str | None) -> ssl.SSLContext:
    """A context that verifies the server (also by `SSL_CERT_FILE`), and shows it this certificate, if one is given."""
    context = ssl.create_default_context()
    if cert is not None:
        context.load_cert_chain(cert, key)
    return context
