"""An order that is cancelled unless it is paid in time, as an application beside Dapr: the standard library and Dapr's HTTP API.

Placing an order publishes "payment is due" for later; when that comes and the order is not paid, the order is cancelled and the
warehouse told to let the goods go.
"""

import json
import os
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PAY_WITHIN = os.environ.get("PAY_WITHIN", "PT15M")
DAPR = f"http://127.0.0.1:{os.environ.get('DAPR_HTTP_PORT', '3500')}"
SUBSCRIPTIONS = [
    {"pubsubname": "pubsub", "topic": "payment-due", "route": "/payment-due"},
    {"pubsubname": "pubsub", "topic": "goods-released", "route": "/goods-released"},
]

orders: dict[str, str] = {}
"""The state of each order: placed, paid, cancelled. Yours is in a database."""


def publish(topic: str, data: dict[str, Any], **metadata: str) -> None:
    """Publish an event; with `scheduledSendTime` it is published then."""
    query = urllib.parse.urlencode({f"metadata.{name}": value for name, value in metadata.items()})
    request = urllib.request.Request(
        f"{DAPR}/v1.0/publish/pubsub/{topic}?{query}",
        json.dumps(data).encode(),
        {"content-type": "application/json"},
    )
    urllib.request.urlopen(request, timeout=10).close()


def place(order: str) -> None:
    """Place an order, and schedule the look at its payment."""
    orders[order] = "placed"
    publish("payment-due", {"order": order}, scheduledSendTime=PAY_WITHIN)


def pay(order: str) -> None:
    """Note the payment. The scheduled look will find it."""
    orders[order] = "paid"


def payment_is_due(data: dict[str, str]) -> None:
    """Cancel the order if it is not paid. An event may come twice: the second look changes nothing."""
    if orders.get(data["order"], "placed") == "placed":
        orders[data["order"]] = "cancelled"
        publish("goods-released", data)


def goods_are_released(data: dict[str, str]) -> None:
    """The warehouse's part."""
    print(f"warehouse: order {data['order']} was not paid, its goods are free", flush=True)


class Application(BaseHTTPRequestHandler):
    """The routes for people, and those that Dapr calls."""

    def do_GET(self) -> None:
        """Dapr asks for the subscriptions, and people for an order."""
        if self.path == "/dapr/subscribe":
            self._answer(SUBSCRIPTIONS)
        elif self.path.startswith("/orders/"):
            self._answer({"state": orders.get(self.path.removeprefix("/orders/"), "unknown")})
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        """People place and pay orders; Dapr brings events."""
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        match self.path.split("/")[1:]:
            case ["orders", order]:
                place(order)
            case ["orders", order, "payment"]:
                pay(order)
            case ["payment-due"]:
                payment_is_due(json.loads(body)["data"])
            case ["goods-released"]:
                goods_are_released(json.loads(body)["data"])
            case _:
                self.send_error(404)
                return
        self._answer({"status": "SUCCESS"})

    def _answer(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Keep the terminal for the warehouse."""


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("APP_PORT", "8003"))), Application).serve_forever()
