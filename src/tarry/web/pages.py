"""The dashboard's files as pages of the HTTP server.

They are read once, and are the same for everybody: who may see what is decided by the API that they call. A browser may run
nothing but these files and may talk to nobody but this server (`POLICY`).
"""

from importlib.resources import files
from typing import Final

from tarry.doors.http.problems import HttpRefusal
from tarry.http.fixed import Fixed
from tarry.http.request import Request
from tarry.http.response import Response

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
    """One file, served as it is, or compressed for those who take that."""

    def __init__(self, content: bytes, content_type: bytes) -> None:
        self._content = Fixed(content, (*_HEADERS, (b"content-type", content_type)))

    def __call__(self, request: Request) -> Response:
        """Answer a GET or HEAD; a browser that has the file already is told so."""
        if request.method not in ("GET", "HEAD"):
            raise HttpRefusal(405, "method-not-allowed", "use GET, HEAD", [(b"allow", b"GET, HEAD")])
        return self._content.answer(request)


def dashboard() -> dict[str, Page]:
    """The pages by their paths."""
    pages: dict[str, Page] = {}
    for file in files("tarry.web").joinpath("static").iterdir():
        name = file.name
        content_type = _TYPES.get(name.rpartition(".")[2])
        if content_type is not None:
            path = ROOT if name == "index.html" else FOLDER + name
            pages[path] = Page(file.read_bytes(), content_type)
    return pages
