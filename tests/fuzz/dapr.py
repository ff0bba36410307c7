"""The Dapr door over HTTP: publish and bulk publish, with whatever metadata come to mind."""

import json
from urllib.parse import quote

import httpx

from tests.fuzz.values import Values

PUBSUBS = ("pubsub", "pubsub", "memory", "nope")
CONTENT_TYPES = (
    "application/json",
    "text/plain",
    "application/cloudevents+json",
    "application/octet-stream",
    "",
)


def metadata(values: Values) -> dict[str, str]:
    """Metadata of a publish; in a third of the cases it is simply to go out soon."""
    if values.chance(0.3):
        return {"scheduledSendTime": f"{values.soon_ms()}ms"}
    return values.some(
        scheduledSendTime=lambda: values.one(
            "1970-01-01T00:00:00Z",
            "9999-12-31T23:59:59Z",
            "2026-02-30T00:00:00Z",
            str(values.instant_ms()),
            "0001-01-01T00:00:00+14:00",
            values.text(30),
            "P1D",
            "PT0.5S",
            "PT1S",
            "1s",
            f"{values.integer()}ms",
            f"P{abs(values.integer())}Y",
        ),
        scheduledRepeat=lambda: values.one(
            "P0MT1S",
            "R1/PT1S",
            "R999999999/PT0.001S",
            f"R{abs(values.integer())}/PT1S",
            "P1Y",
            "P999999999Y",
            "* * * * * *",
            "0 0 0 29 2 1",
            "@every 1ms",
            "@every 1s",
            "@yearly",
            values.text(30),
            "R2/P0DT1S",
        ),
        ttlInSeconds=lambda: str(values.integer()),
        rawPayload=lambda: values.one("true", "false", values.text(5)),
        partitionKey=lambda: values.text(300),
        **{
            values.one("cloudevent.id", "cloudevent.type", "cloudevent.traceparent", "priority"): lambda: (
                values.text(values.one(50, 20_000))
            )
        },
    )


def payload(values: Values) -> tuple[bytes, str]:
    """The data of a publish, and what they are said to be."""
    type_ = values.one(*CONTENT_TYPES, values.one("a/", "+/") * 2_000)
    event = {"specversion": "1.0", "id": values.text(50), "expiration": values.text(20), "data": 1}
    return values.one(values.document(), json.dumps(event).encode(), values.data(3_000)), type_


class Dapr:
    """An application that publishes."""

    def __init__(self, client: httpx.AsyncClient, values: Values) -> None:
        self.client = client
        self.values = values
        self.accepted: list[str] = []

    async def step(self) -> None:
        """Publish once, or in bulk, or ask for something else."""
        values = self.values
        how, where = "", f"{values.one(*PUBSUBS)}/{values.name()}"
        content, type_ = payload(values)
        if values.chance(0.3):
            how, type_ = "bulk/", "application/json"
            content = values.document() if values.chance(0.2) else self._entries()
        elif values.chance(0.1):
            await self._metadata()
            return
        pairs = (f"metadata.{name}={quote(value, safe='')}" for name, value in metadata(values).items())
        path = f"/v1.0{values.one('', '-alpha1') if how else ''}/publish/{how}{where}?{'&'.join(pairs)}"
        headers = {
            "content-type": type_,
            **values.some(traceparent=lambda: "00-" + "a" * 32 + "-" + "b" * 16 + "-01"),
        }
        try:
            answer = await self.client.post(path, content=content, headers=headers)
        except httpx.InvalidURL:
            return  # too long for this client
        said = answer.headers.get("tarry-message-id") or answer.headers.get("tarry-message-ids") or ""
        self.accepted += [id_ for id_ in said.split(",") if id_]

    def _entries(self) -> bytes:
        values = self.values
        entries = [
            {
                "entryId": values.one(str(n), str(n), str(n), values.text(300)),
                "event": values.one("x", {"a": values.text(30)}, values.integer(), None),
                "contentType": values.one("text/plain", "application/json", "application/octet-stream"),
                **values.some(metadata=lambda: metadata(values)),
            }
            for n in range(values.one(1, 100, 1_500))
        ]
        return json.dumps(entries).encode()

    async def _metadata(self) -> None:
        key = quote(self.values.text(self.values.one(10, 1_000)) or "k", safe="")
        await self.client.put(f"/v1.0/metadata/{key}", content=self.values.data(20_000))
        assert (await self.client.get("/v1.0/metadata")).status_code == 200
