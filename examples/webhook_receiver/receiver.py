"""A receiver of webhooks that verifies signatures and acts once for each message, with nothing but the standard library."""

import base64
import hashlib
import hmac
import os
import sqlite3
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

SECRETS = os.environ["WEBHOOK_SECRETS"].split(",")
"""`whsec_…`, as the server has them; two of them while you change from one to the other."""

TOLERANCE_S = 300
MAX_BODY_BYTES = 1 << 20

seen = sqlite3.connect(os.environ.get("SEEN", "seen.sqlite"), isolation_level=None)
seen.execute("CREATE TABLE IF NOT EXISTS seen (id TEXT PRIMARY KEY) WITHOUT ROWID")


def is_signed(message_id: str, timestamp: str, signatures: str, body: bytes) -> bool:
    """Whether one of our secrets signed these very bytes, within the last five minutes."""
    if not timestamp.isdecimal() or abs(time.time() - int(timestamp)) > TOLERANCE_S:
        return False
    signed = f"{message_id}.{timestamp}.".encode() + body
    for secret in SECRETS:
        key = base64.b64decode(secret.removeprefix("whsec_"))
        expected = "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
        if any(hmac.compare_digest(expected.encode(), given.encode()) for given in signatures.split(" ")):
            return True
    return False


class Receiver(BaseHTTPRequestHandler):
    """Answers 204 for what it did or had done before, and 401 for what nobody of ours signed."""

    timeout = 10

    def do_POST(self) -> None:
        """Verify before anything is parsed, then act and remember in one transaction."""
        length = self.headers.get("content-length", "")
        if not length.isdecimal() or int(length) > MAX_BODY_BYTES:
            self.send_error(413)
            return
        body = self.rfile.read(int(length))
        message_id = self.headers.get("webhook-id", "")
        timestamp, signatures = (
            self.headers.get(f"webhook-{name}", "") for name in ("timestamp", "signature")
        )
        if not is_signed(message_id, timestamp, signatures, body):
            self.send_error(401)
            return
        seen.execute("BEGIN IMMEDIATE")
        is_new = seen.execute("INSERT OR IGNORE INTO seen VALUES (?)", (message_id,)).rowcount == 1
        if is_new:
            print("new:", body.decode(), flush=True)  # your own work, in this transaction
        seen.execute("COMMIT")
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: a message's id lets its holder cancel it."""


if __name__ == "__main__":
    port = int(os.environ.get("PORT", "9000"))
    HTTPServer(("127.0.0.1", port), Receiver).serve_forever()
