"""The ledger of a server, read over its HTTP door: for drivers and executors that cannot see its folder.

Frames come byte for byte as they are on the server's disk, and are proved here by their checksums, as those of a folder are.
A server that does not answer, or that has too many readers, is asked again for a while; a stream that breaks is taken up
after the last record that was complete. Needs a token with the role admin for all namespaces, unless the server has no
tokens.
"""

import json
import os
import random
import time
from collections.abc import Iterator, Sequence
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, Final, NoReturn
from urllib.parse import SplitResult, urlsplit

from tarry.config.tls import CERT_VARIABLE, KEY_VARIABLE, client_context
from tarry.core.errors import Conflict, Damage, Forbidden, NotFound, Rejected, TarryError, Unavailable
from tarry.core.time.backoff import doubling, spread
from tarry.ledger.aside import flagged
from tarry.ledger.disk import RealDisk
from tarry.ledger.replay import Frame, replay
from tarry.ledger.segment import Segment, SegmentHeader, segment_name

ANSWER_WITHIN_S: Final = 30.0
"""How long the server may be silent."""
PATIENCE_S: Final = 60.0
"""How long a server that does not answer is asked again: it may be starting anew."""
FIRST_WAIT_S: Final = 0.1
LONGEST_WAIT_S: Final = 2.0


class ServerFollower:
    """A reader of a server's ledger."""

    def __init__(self, url: str, token: str | None, patience_s: float = PATIENCE_S) -> None:
        self._parts = _parts_of(url)
        self._url = url.rstrip("/")
        self._token = token
        self._patience_s = patience_s

    def ledger_id(self) -> bytes:
        """Whose records these are."""
        return bytes.fromhex(self._shown()["ledger_id"])

    def durable_seq(self) -> int:
        """The durable head."""
        return int(self._shown()["durable_seq"])

    def first_seq(self) -> int:
        """The first seq that has not been reclaimed."""
        return int(self._shown()["first_seq"])

    def bounds(self) -> list[int]:
        """The first seq of each segment."""
        return [int(segment["first_seq"]) for segment in self._shown()["segments"]]

    def set_aside(self) -> frozenset[int]:
        """The seqs of records that the server goes on without."""
        return _aside(self._shown())

    def frames(self, from_seq: int, upto_seq: int) -> Iterator[Frame]:
        """Every record of a range."""
        shown = self._shown()
        upto_seq, aside = min(upto_seq, int(shown["durable_seq"])), _aside(shown)
        deadline_s = time.monotonic() + self._patience_s
        while from_seq <= upto_seq:
            try:
                for frame in self._stretch(from_seq, upto_seq):
                    from_seq = frame.first_seq + frame.count
                    yield flagged(frame, aside)
                    deadline_s = time.monotonic() + self._patience_s
            except (OSError, HTTPException) as error:
                if time.monotonic() > deadline_s:
                    raise self._silent(error) from None
                time.sleep(FIRST_WAIT_S)

    def _stretch(self, from_seq: int, upto_seq: int) -> Iterator[Frame]:
        """The content of one answer: whole frames of one segment."""
        with self._ask(f"/v1/ledger/frames?from_seq={from_seq}&upto_seq={upto_seq}") as answer:
            told = {name.lower(): value for name, value in answer.getheaders()}
            number, offset, first_seq, last_seq, size = (
                int(told[name])
                for name in (
                    "tarry-segment", "tarry-offset", "tarry-first-seq", "tarry-last-seq", "content-length",
                )
            )  # fmt: skip
            header = SegmentHeader(
                bytes.fromhex(told["tarry-ledger-id"]), number, first_seq, 0, offset + size
            )
            place = f"{self._url} {segment_name(number)}"
            # The disk is never asked: the file is the answer.
            segment = Segment(RealDisk(), place, header, _Answer(answer, offset, offset + size))
            segment.last_seq = last_seq
            yield from replay(segment, offset, first_seq, from_seq, upto_seq)

    def _shown(self) -> dict[str, Any]:
        with self._ask("/v1/ledger") as answer:
            shown: dict[str, Any] = json.loads(answer.read())
            return shown

    def _ask(self, path: str) -> HTTPResponse:
        deadline_s = time.monotonic() + self._patience_s
        waits = doubling(FIRST_WAIT_S, LONGEST_WAIT_S)
        while True:
            reason: object
            try:
                answer = self._ask_once(path)
                if answer.status == 200:
                    return answer
                told = _problem(answer)
                if answer.status != 503:
                    self._refused(answer.status, told)
                reason = told.get("detail", "not available now")
            except (OSError, HTTPException) as error:
                reason = error
            wait_s = next(waits)
            if time.monotonic() + wait_s > deadline_s:
                raise self._silent(reason)
            time.sleep(spread(wait_s, random.random))

    def _ask_once(self, path: str) -> HTTPResponse:
        return _send(self._parts, self._token, "GET", path)

    def _refused(self, status: int, told: dict[str, Any]) -> NoReturn:
        detail = str(told.get("detail", f"status {status}"))
        if told.get("code") == "damage":
            file, _, rest = detail.partition(": damaged at byte ")
            offset, _, reason = rest.partition(": ")
            raise Damage(f"{self._url} {file}", int(offset) if offset.isdigit() else 0, reason or detail)
        if status in (401, 403):
            raise Forbidden(
                f"{self._url} does not show its ledger: {detail}; "
                "set pipeline.token_file to a token with the role admin for all namespaces"
            )
        raise NotFound(f"{self._url}: {detail}")

    def _silent(self, reason: object) -> Unavailable:
        return Unavailable(f"{self._url} does not show its ledger: {reason}")


def _aside(shown: dict[str, Any]) -> frozenset[int]:
    """The seqs that a server has set aside; an older one does not say."""
    return frozenset(map(int, shown.get("set_aside", ())))


def call(
    url: str,
    token: str | None,
    method: str,
    path: str,
    body: bytes | None = None,
    patience_s: float = PATIENCE_S,
) -> bytes:
    """One request that may be repeated, and its answer; raises what the server says against it.

    While the server does not answer, or says that it cannot now, it is asked again for a while.
    """
    parts = _parts_of(url)
    deadline_s = time.monotonic() + patience_s
    waits = doubling(FIRST_WAIT_S, LONGEST_WAIT_S)
    while True:
        try:
            with _send(parts, token, method, path, body) as answer:
                said = answer.read()
            if answer.status < 300:
                return said
            told = _told(said)
            reason: object = told.get("detail", f"status {answer.status}")
            if answer.status not in (429, 503) or told.get("code") == "too-many-pending":
                raise _REFUSALS.get(answer.status, Rejected)(str(reason))
        except (OSError, HTTPException) as error:
            reason = error
        wait_s = next(waits)
        if time.monotonic() + wait_s > deadline_s:
            raise Unavailable(f"{url} does not answer: {reason}")
        time.sleep(spread(wait_s, random.random))


_REFUSALS: Final[dict[int, type[TarryError]]] = {401: Forbidden, 403: Forbidden, 404: NotFound, 409: Conflict}


def _parts_of(url: str) -> SplitResult:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Unavailable(f"{url} is not the address of a server, such as http://host:8080")
    return parts


def _send(
    parts: SplitResult, token: str | None, method: str, path: str, body: bytes | None = None
) -> HTTPResponse:
    assert parts.hostname is not None
    connection = (
        HTTPSConnection(
            parts.hostname,
            parts.port,
            timeout=ANSWER_WITHIN_S,
            context=client_context(os.environ.get(CERT_VARIABLE), os.environ.get(KEY_VARIABLE)),
        )
        if parts.scheme == "https"
        else HTTPConnection(parts.hostname, parts.port, timeout=ANSWER_WITHIN_S)
    )
    headers = {"connection": "close"}
    if token:
        headers["authorization"] = f"Bearer {token}"
    if body is not None:
        headers["content-type"] = "application/json"
    connection.request(method, parts.path.rstrip("/") + path, body, headers)
    # With `connection: close` the answer owns the socket, and closes it with itself.
    return connection.getresponse()


def _problem(answer: HTTPResponse) -> dict[str, Any]:
    with answer:
        return _told(answer.read(1 << 16))


def _told(said: bytes) -> dict[str, Any]:
    try:
        told = json.loads(said)
    except ValueError:
        told = None
    return told if isinstance(told, dict) else {}


class _Answer:
    """The body of an answer as a file that is read forward: bytes before what was asked for last are forgotten."""

    def __init__(self, answer: HTTPResponse, offset: int, end: int) -> None:
        self._answer = answer
        self._base = offset
        self._end = end
        self._kept = b""

    def read(self, size: int, offset: int) -> bytes:
        """Bytes of the file, at their offset in it."""
        if not self._base <= offset <= self._base + len(self._kept):
            raise ValueError(f"offset {offset} is not next")
        kept = self._kept[offset - self._base :]
        if len(kept) < size:
            kept += self._answer.read(size - len(kept))
            if offset + len(kept) < min(offset + size, self._end):
                # Less than was announced is a broken connection, and no damage.
                raise ConnectionError("the answer broke off")
        self._kept, self._base = kept, offset
        return kept[:size]

    def size(self) -> int:
        """Unknown."""
        raise NotImplementedError

    def write(self, data: bytes | memoryview, offset: int) -> None:
        """Never."""
        raise NotImplementedError

    def write_parts(self, parts: Sequence[bytes], offset: int) -> None:
        """Never."""
        raise NotImplementedError

    def truncate(self, size: int) -> None:
        """Never."""
        raise NotImplementedError

    def sync(self) -> None:
        """Never."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of the connection."""
        self._answer.close()
