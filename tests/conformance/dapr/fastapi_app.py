"""An application as Dapr's own FastAPI extension makes it: says what it gets on its standard output."""

# The extension is not typed, and what it needs is not in the locks.
# mypy: disable-error-code="untyped-decorator, import-not-found, no-untyped-def, no-untyped-call"

import json
import os
from typing import Any

import uvicorn
from dapr.ext.fastapi import DaprApp
from fastapi import Body, FastAPI

app = FastAPI()
dapr = DaprApp(app)


@dapr.subscribe(pubsub="pubsub", topic="orders", route="/orders", dead_letter_topic="dead")
def orders(event: dict[str, Any] = Body()) -> dict[str, str]:  # noqa: B008 - as FastAPI wants it
    print(json.dumps(["orders", event["data"]]), flush=True)
    return {"status": "DROP" if event["data"] == "bad" else "SUCCESS"}


@dapr.subscribe(pubsub="pubsub", topic="dead")
def dead(event: dict[str, Any] = Body()) -> None:  # noqa: B008
    print(json.dumps(["dead", event["data"]]), flush=True)


print("up", flush=True)
uvicorn.run(app, host="127.0.0.1", port=int(os.environ["APP_PORT"]), log_level="warning")
