"""The dashboard's files as pages of the HTTP server.

They are read once, and are the same for everybody: who may see what is decided by the API that they call. A browser may run
nothing but these files and may talk to nobody but this server (`POLICY`).
"""

import hashlib
from importlib.resources import files
from typing import Final

from tarry.doors.http.asgi import Asgi, Receive, Scope, Send, respond
from tarry.doors.http.problems import HttpRefusal

ROOT: Final = "/"
FOLDER: Final = "/ui/"

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
"""The content-security policy: no script, style or connection from anywhere else, and none that is written into a page."""

_HEADERS: Final = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
    (b"cache-control", b"no-cache"),
)

_TYPES: Final = {
    "html": b"text/html; charset=utf-8",
    "css": b"text/css; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "svg": b"image/svg+xml",
}


class Page:
    """One file, served as it is."""

    def __init__(self, content: bytes, content_type: bytes) -> None:
        self._content = content
        self._tag = b'"%s"' % hashlib.sha256(content).hexdigest()[:32].encode()
        self._headers = (*_HEADERS, (b"content-type", content_type), (b"etag", self._tag))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a GET or HEAD; a browser that has the file already is told so."""
        if scope["method"] not in ("GET", "HEAD"):
            raise HttpRefusal(405, "method-not-allowed", "use GET, HEAD", [(b"allow", b"GET, HEAD")])
        if dict(scope["headers"]).get(b"if-none-match") == self._tag:
            await send({"type": "http.response.start", "status": 304, "headers": [*self._headers]})
            await send({"type": "http.response.body", "body": b""})
        else:
            await respond(send, 200, [*self._headers], self._content)


def dashboard() -> dict[str, Asgi]:
    """The pages by their paths."""
    pages: dict[str, Asgi] = {}
    for file in files("tarry.web").joinpath("static").iterdir():
        name = file.name
        content_type = _TYPES.get(name.rpartition(".")[2])
        if content_type is not None:
            path = ROOT if name == "index.html" else FOLDER + name
            pages[path] = Page(file.read_bytes(), content_type)
    return pages
