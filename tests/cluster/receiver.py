"""A receiver of webhooks that takes everything, and writes down what came and when."""

import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

from tarry.core.time.clock import SystemClock


class Receiver:
    """A context manager: it listens for the time of a test."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.arrivals: list[tuple[str, int]] = []
        """Each body that came, with the instant."""
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"])).decode()
                with receiver._lock:
                    receiver.arrivals.append((body, SystemClock().now_ms()))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """The destination of messages."""
        return f"http://127.0.0.1:{self._server.server_port}/"

    @property
    def counts(self) -> Counter[str]:
        """How often each body came."""
        with self._lock:
            return Counter(body for body, _ in self.arrivals)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
