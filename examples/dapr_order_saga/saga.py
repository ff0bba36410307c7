"""An order that is cancelled unless it is paid in time, as an application beside Dapr: the standard library and Dapr's HTTP API.

Placing an order publishes "payment is due" for later; when that comes and the order is not paid, the order is cancelled and the
warehouse told to let the goods go.
"""

import json
import os
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PAY_WITHIN = os.environ.get("PAY_WITHIN", "PT15M")
PUBLISH = f"http://127.0.0.1:{os.environ.get('DAPR_HTTP_PORT', '3500')}/v1.0/publish/pubsub"
TOPICS = ("payment-due", "goods-released")

orders: dict[str, str] = {}
"""The state of each order: placed, paid, cancelled. Yours is in a database."""


def publish(topic: str, order: str) -> None:
    """Publish an event about an order; with `?metadata.scheduledSendTime=` it is published then."""
    body = json.dumps({"order": order}).encode()
    request = urllib.request.Request(f"{PUBLISH}/{topic}", body, {"content-type": "application/json"})
    urllib.request.urlopen(request, timeout=10).close()


def payment_is_due(order: str) -> None:
    """Cancel the order if it is not paid. An event may come twice: the second look changes nothing."""
    if orders.get(order, "placed") == "placed":
        orders[order] = "cancelled"
        publish("goods-released", order)


class Application(BaseHTTPRequestHandler):
    """The routes for people, and those that Dapr calls."""

    def do_GET(self) -> None:
        """Dapr asks for the subscriptions, and people for an order."""
        if self.path == "/dapr/subscribe":
            self._answer([{"pubsubname": "pubsub", "topic": topic, "route": f"/{topic}"} for topic in TOPICS])
        else:
            self._answer({"state": orders.get(self.path.removeprefix("/orders/"), "unknown")})

    def do_POST(self) -> None:
        """People place and pay orders; Dapr brings events."""
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        match self.path.split("/")[1:]:
            case ["orders", order]:
                orders[order] = "placed"
                publish(f"payment-due?metadata.scheduledSendTime={PAY_WITHIN}", order)
            case ["orders", order, "payment"]:
                orders[order] = "paid"  # the scheduled look will find it
            case ["payment-due"]:
                payment_is_due(json.loads(body)["data"]["order"])
            case ["goods-released"]:
                order = json.loads(body)["data"]["order"]
                print(f"warehouse: order {order} was not paid, its goods are free", flush=True)
        self._answer({"status": "SUCCESS"})

    def _answer(self, value: object) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(value).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Keep the terminal for the warehouse."""


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("APP_PORT", "8003"))), Application).serve_forever()
