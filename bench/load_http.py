"""Scheduling over HTTP: one by one, as NDJSON, as Arrow. Every answer is checked."""

import http.client
import json
import time
from collections.abc import Iterator
from itertools import repeat

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bench.http_wire import HttpReply, request
from bench.plan import CONNECTIONS
from bench.tape import payload
from bench.tarry_server import DESTINATION
from bench.wire import Loaded, Refused, connect, drive

BATCH = "/v1/messages/batch"
NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
HOUR_MS = 3_600_000

NDJSON_LINES = 5_000
NDJSON_CONNECTIONS = 4
ARROW_ROWS = 50_000
ARROW_CONNECTIONS = 3
TAKEN_ROWS = 5_000
"""Rows of a request that a server may refuse for the moment."""
MOMENT_S = 0.2


def single(port: int, seconds: float, size: int) -> Loaded:
    """One message a request."""
    body = {"destination": DESTINATION, "payload": payload(0, size).decode(), "delay_ms": HOUR_MS}
    one = request("POST", "/v1/messages", json.dumps(body).encode())
    return drive(connect(port, CONNECTIONS), repeat(one), HttpReply, seconds)


def ndjson(port: int, seconds: float, size: int) -> Loaded:
    """NDJSON batches, each line with its destination, due instant and payload."""
    one = request("POST", BATCH, ndjson_body(range(NDJSON_LINES), _later(NDJSON_LINES), size), NDJSON)

    def check(body: bytes) -> None:
        if body.count(b'"past_due"') != NDJSON_LINES:
            raise Refused(f"not every line was accepted: {body[:500]!r}")

    return drive(connect(port, NDJSON_CONNECTIONS), repeat(one), lambda: HttpReply(check), seconds)


def arrow(port: int, seconds: float, size: int) -> Loaded:
    """Arrow batches with a due instant and a payload in each row."""
    one = arrow_request(0, _later(ARROW_ROWS), size)
    # Looking into an answer takes time from the load: it is done afterwards.
    answers: list[bytes] = []
    sockets = connect(port, ARROW_CONNECTIONS)
    loaded = drive(sockets, repeat(one), lambda: HttpReply(answers.append), seconds)
    for answer in answers:
        check_arrow(answer, ARROW_ROWS)
    return loaded


def fill(port: int, due_at_ms: NDArray[np.int64], size: int) -> None:
    """Schedule messages 0, 1, … with these due instants, as fast as Arrow goes."""
    # One connection, so that answers come in the order of the requests.
    rows: list[int] = []

    def requests() -> Iterator[bytes]:
        for first in range(0, len(due_at_ms), ARROW_ROWS):
            some = due_at_ms[first : first + ARROW_ROWS]
            rows.append(len(some))
            yield arrow_request(first, some, size)

    def check(body: bytes) -> None:
        check_arrow(body, rows.pop(0))

    drive(connect(port), requests(), lambda: HttpReply(check))


def fill_as_taken(port: int, due_at_ms: NDArray[np.int64], size: int, within_s: float) -> int:
    """As `fill`, no faster than the server wants, which says so by 503 and `Retry-After`; gives how many it took in that time."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    until_s = time.monotonic() + within_s
    taken = 0
    while taken < len(due_at_ms) and time.monotonic() < until_s:
        body = arrow_body(taken, due_at_ms[taken : taken + TAKEN_ROWS], size)
        connection.request("POST", f"{BATCH}?destination={DESTINATION}", body, {"content-type": ARROW})
        answer = connection.getresponse()
        told = answer.read()
        if answer.status == 503:
            time.sleep(float(answer.headers["retry-after"]))
            continue
        if answer.status != 200:
            raise Refused(f"{answer.status}: {told[:500]!r}")
        with pa.ipc.open_stream(told) as reader:
            refused = reader.read_all()["error"].drop_null()
        # A row that was refused for the moment counts with those that come next: one is like another.
        taken += len(due_at_ms[taken : taken + TAKEN_ROWS]) - len(refused)
        if len(refused):
            time.sleep(MOMENT_S)
    connection.close()
    return taken


def ndjson_body(numbers: range, due_at_ms: NDArray[np.int64], size: int) -> bytes:
    """Lines for messages of these numbers and due instants."""
    return b"".join(
        b'{"destination":"%b","due_at_ms":%d,"payload":"%b"}\n'
        % (DESTINATION.encode(), due, payload(n, size))
        for n, due in zip(numbers, due_at_ms.tolist(), strict=True)
    )


def arrow_request(first: int, due_at_ms: NDArray[np.int64], size: int) -> bytes:
    """A request with a batch of messages; the destination is its default."""
    return request("POST", f"{BATCH}?destination={DESTINATION}", arrow_body(first, due_at_ms, size), ARROW)


def arrow_body(first: int, due_at_ms: NDArray[np.int64], size: int) -> bytes:
    """A batch of messages from a number on."""
    payloads = [payload(n, size) for n in range(first, first + len(due_at_ms))]
    batch = pa.record_batch(
        [pa.array(payloads, pa.binary()), pa.array(due_at_ms)], names=["payload", "due_at_ms"]
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    body: bytes = sink.getvalue().to_pybytes()
    return body


def check_arrow(body: bytes, rows: int) -> None:
    """Raise unless every row was accepted."""
    with pa.ipc.open_stream(body) as reader:
        table = reader.read_all()
    if table.num_rows != rows or table["error"].null_count != rows:
        raise Refused(f"not every row was accepted: {table['error'].drop_null()[:1]}")


def _later(count: int) -> NDArray[np.int64]:
    return time.time_ns() // 1_000_000 + HOUR_MS + np.arange(count)
