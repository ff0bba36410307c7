"""The sender of an HTTP request, by its bearer token."""

from tarry.core.tenants.access import Access, Caller
from tarry.doors.http.problems import no_token
from tarry.http.request import bearer_in


def sender(access: Access, authorization: bytes | None) -> Caller:
    """The caller of this `Authorization` header; raises a 401 for an unknown one."""
    secret: bytes | None = None
    if not access.is_open:
        if authorization is None:
            raise no_token("send a token: Authorization: Bearer …")
        secret = bearer_in(authorization)
        if secret is None:
            raise no_token("the authorization scheme is not Bearer")
    found = access.known(secret)
    if found is None:
        raise no_token("the token is not known", b'Bearer error="invalid_token"')
    return found
