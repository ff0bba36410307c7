"""The sender of an HTTP request, by its bearer token."""

from tarry.core.access import Access, Caller
from tarry.doors.http.problems import no_token


def sender(access: Access, authorization: bytes | None) -> Caller:
    """The caller of this `Authorization` header; raises a 401 for an unknown one."""
    secret: bytes | None = None
    if not access.is_open:
        if authorization is None:
            raise no_token("send a token: Authorization: Bearer …")
        scheme, _, secret = authorization.partition(b" ")
        if scheme.lower() != b"bearer":
            raise no_token("the authorization scheme is not Bearer")
        secret = secret.strip()
    found = access.known(secret)
    if found is None:
        raise no_token("the token is not known", b'Bearer error="invalid_token"')
    return found
