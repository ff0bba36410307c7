"""A fixed content: bytes that are the same for everybody, as they are or compressed, with a tag by which a client has them already."""

import gzip
import hashlib
from functools import cached_property

from tarry.http.request import Request
from tarry.http.response import Response

HeaderTuple = tuple[tuple[bytes, bytes], ...]


class Fixed:
    """A content with its headers. It is compressed when somebody first takes that."""

    def __init__(self, content: bytes, headers: HeaderTuple) -> None:
        self._content = content
        self._headers = (*headers, (b"vary", b"accept-encoding"))
        self._tag = hashlib.sha256(content).hexdigest()[:32].encode()

    def answer(self, request: Request) -> Response:
        """The content; nothing where the client has it already."""
        takes = takes_gzip(request.header(b"accept-encoding") or b"")
        tag, headers, content = self._short if takes else self._plain
        headers = (*headers, (b"etag", tag))
        if request.header(b"if-none-match") == tag:
            return Response(304, headers)
        return Response(200, headers, content)

    @property
    def _plain(self) -> tuple[bytes, HeaderTuple, bytes]:
        return b'"%s"' % self._tag, self._headers, self._content

    @cached_property
    def _short(self) -> tuple[bytes, HeaderTuple, bytes]:
        headers = (*self._headers, (b"content-encoding", b"gzip"))
        return b'"%s-gzip"' % self._tag, headers, gzip.compress(self._content, mtime=0)


def takes_gzip(accepted: bytes) -> bool:
    """Whether an Accept-Encoding header takes gzip (RFC 9110, section 12.5.3)."""
    for coding in accepted.lower().split(b","):
        name, _, weight = coding.replace(b" ", b"").partition(b";")
        if name in (b"gzip", b"*"):
            return weight.rstrip(b".0") != b"q="
    return False
