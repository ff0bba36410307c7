"""An application as Dapr's own gRPC extension makes it: says what it gets on its standard output."""

# The extension is not typed, and what it needs is not in the locks.
# mypy: disable-error-code="untyped-decorator, import-not-found, no-untyped-def, no-untyped-call"

import json
import os

from dapr.clients.grpc._response import TopicEventResponse
from dapr.ext.grpc import App, Rule

app = App()
tried: set[str] = set()


def say(where: str, data: bytes) -> None:
    print(json.dumps([where, data.decode()]), flush=True)


# Otherwise the extension names no default route beside its rules, and a sidecar drops what no rule takes.
@app.subscribe(pubsub_name="pubsub", topic="orders", disable_topic_validation=True)
def orders(event) -> TopicEventResponse:
    data = event.Data()
    text = data if isinstance(data, bytes) else str(data).encode()
    say("orders", text)
    if event.EventID() not in tried and b"again" in text:
        tried.add(event.EventID())
        return TopicEventResponse("retry")
    return TopicEventResponse("success")


@app.subscribe(pubsub_name="pubsub", topic="orders", rule=Rule('event.type == "big"', 1))
def big(event) -> None:
    say("big", event.Data() if isinstance(event.Data(), bytes) else str(event.Data()).encode())


print("up", flush=True)
app.run(int(os.environ["APP_PORT"]))
