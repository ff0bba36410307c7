"""A consumer that writes a tape: it stamps what its socket gives and reads it later.

By long poll it asks again as soon as an answer is complete and acknowledges nothing meanwhile. By event stream it
acknowledges as it goes, because the server allows ten thousand unacknowledged entries at most; acknowledgements go
over a second connection and nobody waits for them.

    python -m bench.consumer PORT COUNT DUE    for the steady load: prints a line when it listens, then its figures
"""

import gc
import json
import select
import sys
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np

from bench.http_wire import HttpReply, request
from bench.tape import Tape, lateness
from bench.tarry_server import SUBSCRIPTION
from bench.wire import RECV_BYTES, Refused, connect

POLLED = 4_096
"""Messages that one poll asks for at the most: while it reads an answer, the next one is made."""
WINDOW = 10_000
ACK_EVERY = 250


def poll(port: int, count: int, max_wait_ms: int = 60_000) -> Tape:
    """Take so many messages by long poll."""
    tape = Tape()
    body = json.dumps({"max": POLLED, "wait_ms": max_wait_ms}).encode()
    ask = request("POST", f"{SUBSCRIPTION}/receive", body)
    reply = HttpReply()
    connection = connect(port)[0]
    gc.disable()
    try:
        connection.sendall(ask)
        while tape.count < count:
            piece = connection.recv(RECV_BYTES)
            tape.add(piece)
            if not piece:
                raise Refused(f"the server closed the connection after {tape.count} of {count} messages")
            if reply.feed(piece) and tape.count < count:
                connection.sendall(ask)
    finally:
        gc.enable()
        connection.close()
    return tape


class EventReader:
    """Takes messages by event stream."""

    def __init__(self, port: int) -> None:
        self._stream, self._acks = connect(port, 2)
        self._stream.sendall(request("GET", f"{SUBSCRIPTION}/events?window={WINDOW}"))
        self.tape = Tape()
        self._acked = 0

    def open(self) -> None:
        """Until the stream has begun."""
        while b": open" not in (data := self._stream.recv(RECV_BYTES)):
            if not data or not data.startswith(b"HTTP/1.1 200"):
                raise Refused(data.decode(errors="replace"))

    def run(self, count: int, idle_s: float = 30) -> Tape:
        """Take so many."""
        gc.disable()
        while self.tape.count < count:
            readable, _, _ = select.select([self._stream, self._acks], [], [], idle_s)
            if not readable:
                raise Refused(f"of {count} messages {self.tape.count} came")
            if self._acks in readable:
                self._acks.recv(RECV_BYTES)
            if self._stream in readable:
                piece = self._stream.recv(RECV_BYTES)
                self.tape.add(piece)
                if not piece:
                    raise Refused("the stream ended")
                self._acknowledge(piece, count)
        gc.enable()
        return self.tape

    def _acknowledge(self, piece: bytes, count: int) -> None:
        if self.tape.count - self._acked < ACK_EVERY and self.tape.count < count:
            return
        # Entries come in order here, so the last whole id stands for all before it.
        end = piece.rfind(b"\ndata: ")
        begin = piece.rfind(b"id: ", 0, end)
        if begin < 0 or end < 0:
            return
        body = b'{"up_to":%d}' % int(piece[begin + 4 : end])
        self._acks.send(request("POST", f"{SUBSCRIPTION}/ack", body))
        self._acked = self.tape.count

    def close(self) -> None:
        """Close the connections."""
        self._stream.close()
        self._acks.close()


def main(port: int, count: int, due: Path) -> None:
    """Take what the steady load sends; its due instants are in a file by then."""
    reader = EventReader(port)
    reader.open()
    print("listening", flush=True)
    tape = reader.run(count)
    while not due.exists():
        time.sleep(0.01)
    late = lateness(tape, np.array(json.loads(due.read_text()), np.float64))
    print(json.dumps({"seen": asdict(late), "own": asdict(tape.own_lateness())}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
