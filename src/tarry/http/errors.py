"""Errors that the kit itself finds in a request. A door's `Application.refuse` says them in the words of its protocol."""


class BodyTooLarge(Exception):
    """The body of a request is larger than its endpoint takes."""

    def __init__(self, limit: int, cut_short: bool = False) -> None:
        """`cut_short`: so large that the rest is not read, and the connection ends with the answer."""
        super().__init__(f"the body is larger than {limit} bytes")
        self.limit = limit
        self.cut_short = cut_short


class BodyTooSlow(Exception):
    """The body, or its next piece, did not come within the endpoint's time."""


class PathNotText(Exception):
    """A part of the path is not UTF-8."""


class Gone(Exception):
    """The client has gone: there is nobody to answer."""


class BadHead(Exception):
    """The head of a request breaks the grammar of HTTP; nothing after it on the connection can be understood."""


class BadChunk(Exception):
    """A chunked body breaks the grammar of HTTP."""
