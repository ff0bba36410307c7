"""The reference of all settings as a page, made from the code: `python -m tarry.config.reference`.

`docs/configuration.md` is its output; a test keeps the two the same.
"""

import sys
from typing import Any, Final

import msgspec
from msgspec import Struct

from tarry.config.fields import fields_of, tables_of, texts_of
from tarry.config.settings import TokenSection

INTRODUCTION: Final = """\
# Configuration

Tarry runs without any settings: it then listens on 127.0.0.1:8080 and keeps its data in `./tarry-data`.

A value comes from the first of these sources that has it:

1. the command line (`--data`, `--host`, `--port`, `--url`);
2. an environment variable: `TARRY_`, then the name in capitals, with two underscores between a table and its
   key. `TARRY_HTTP__PORT=9090` is `port` in `[http]`. Lists are written with commas or as JSON, tables and lists
   of tables as JSON. An empty variable counts as not set;
3. one TOML file: `--config FILE`, else `$TARRY_CONFIG`, else `./tarry.toml` if there is one. Paths in it are
   relative to its own folder;
4. the default.

`tarry config` prints the settings that differ from their default and the source of each, with secrets masked; `--all`
prints the others too. An unknown key, an unknown `TARRY_` variable and a value of the wrong type or range are errors that
name it: nothing is ignored. `tarry doctor` checks the rest of what Tarry needs. One offset shifts all ports:
`TARRY_PORT_OFFSET=10000`, or `tarry up --ports +10000`.

```toml
data = "/var/lib/tarry"

[http]
host = "0.0.0.0"
tls_cert = "/etc/tarry/cert.pem"
tls_key = "/etc/tarry/key.pem"

[[tokens]]
name = "operations"
token_file = "/etc/tarry/operations.token"
roles = ["admin"]

[[tokens]]
name = "orders"
sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
roles = ["produce", "consume"]
namespaces = ["shop/orders"]

[policies.broker]
max_delay_ms = 31622400000

[webhook]
secrets = ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]
allow = ["10.1.0.0/16", ".svc.cluster.local"]
```

Certificates and tokens may be replaced while the server runs: at a SIGHUP (`kill -HUP $(cat tarry-data/lock)`; not from the
terminal that it was started in) the server reads their files and the `[[tokens]]` again. New connections get the new
certificate. Tokens may be added, removed and changed; the connections, consumers and streams of a token that is gone, or has
other roles or namespaces, end, and their clients connect again under the new rights. If any of it cannot be used, the error is
logged and the server keeps all the old certificates or tokens. The last token cannot be removed this way, and a variable
(`TARRY_TOKENS`) of a running process cannot be changed. All other settings take a restart.

"""

SAFETY: Final = """\
## Who may do what

Without `[[tokens]]` everybody who can connect may do everything, so the server then listens on loopback only: an
address that others can reach is refused. With them every request needs `authorization: Bearer …`, except
`/healthz`, `/readyz` and `/openapi.json`.

| role | may |
|---|---|
| `admin` | do everything |
| `produce` | schedule; get, cancel, send and restart by id; publish |
| `consume` | use subscriptions; get a message by its id; see the figures |

[The rights table](rights.md) says what each operation of each door requires.

Each `[[tokens]]` table is one token. Only its digest is kept in memory. A good one: `openssl rand -base64 32`.

With `operations_per_second` a token has one allowance, whatever doors and connections it is used at; a second's worth may come at
once. An operation is a request over HTTP or a gRPC call, and beside it each message of a batch; over Pulsar's protocol it is
each message, and each command but those that keep a connection going (`PING`, `PONG`, `FLOW`, `AUTH_RESPONSE`). Who is faster is refused
before anything is done: with 429 and `Retry-After` over HTTP, with `RESOURCE_EXHAUSTED` and a `RetryInfo` over gRPC. Streams of messages are
held up instead, so that nothing of them is lost: a batch as NDJSON or Arrow, and a Pulsar connection, are not read on until their turn has
come. Batches that go together, all or none (NDJSON to a topic, Dapr's bulk), go at once, and further operations wait until their time has passed, an hour
at the most. `tarry_token_limited_total` in `/metrics` counts how often a token had to wait.
"""

TOLD: Final = {
    "webhook": "How messages go out to `http://` and `https://` destinations; see [outlets/webhook.md](outlets/webhook.md).",
    "policies.broker": "The broker's policy: it holds where neither the API nor a nearer policy (of a namespace or a topic) sets a value.",
}
"""Instead of what the code says of a table, where that is meant for programmers."""

MORE: Final = {
    "engine.backoff_min_ms": "The wait after the first failed attempt; it doubles with each further one.",
    "engine.backoff_max_ms": "The longest wait between two attempts.",
    "engine.lead_ms": "How far ahead of the clock versions are loaded into the wheel.",
    "engine.wheel_entries": "Maximum number of entries in the wheel, of 18 bytes each; beyond it entries are loaded only as others go out.",
    "engine.concurrency": "Maximum number of calls of other systems under way; a broker takes many messages in one call. Tenants share them by namespace.",
    "engine.concurrency_per_host": "Maximum number of calls under way to one destination host, so that a slow host leaves places to others.",
    "engine.attempts": "Number of failed attempts after which a message ends as failed, and goes to the dead-letter topic.",
    "engine.carry_after_ms": "A message still unsent this long after its due time is rewritten at the end of the ledger, so that old segments can be deleted (R9).",
    "engine.flush_every_ms": "Interval at which changes are written to the registry.",
    "engine.snapshot_every_ms": "Interval at which a checksummed snapshot of the registry is made; two are kept.",
    "engine.finalised_retention_rows_per_owner": "Maximum number of one owner's finalised listed messages that can be looked up.",
    "engine.unread_retention_ms": "How long a topic without subscriptions keeps its entries.",
    "engine.mark_every_ms": "Interval at which the watermark is written to the ledger.",
    "engine.reclaim_every_ms": "Interval at which the ledger is searched for segments that nothing needs.",
    "engine.finalised_retention_ms": "How long a finalised message can still be looked up.",
    "engine.finalised_retention_rows": "Maximum number of finalised messages that can be looked up.",
    "engine.idempotency_retention_ms": "How long a repeated idempotency key gets the first answer again.",
}
"""Descriptions for operators, where the code has none, or one that is meant for programmers."""


def reference() -> str:
    """The whole page."""
    page = [INTRODUCTION]
    for name, table in tables_of().items():
        rows = _rows(table, name)
        if rows:
            title = f"`[{name}]`" if name else "At the top"
            told = TOLD.get(name) or (table.__doc__ or "").strip().partition("\n")[0] if name else ""
            page.append(_section(title, told, rows))
    page.append(SAFETY)
    page.append("\n" + _table(_rows(TokenSection, "tokens", variables=False), variables=False))
    return "".join(page)


def _section(title: str, told: str, rows: list[tuple[str, ...]]) -> str:
    return f"## {title}\n\n" + (f"{told}\n\n" if told else "") + _table(rows) + "\n"


def _table(rows: list[tuple[str, ...]], *, variables: bool = True) -> str:
    head = ("key", "default", "variable", "meaning") if variables else ("key", "default", "meaning")
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _rows(table: type[Struct], name: str, *, variables: bool = True) -> list[tuple[str, ...]]:
    texts = texts_of(table)
    prefix = f"{name}." if name else ""
    rows = []
    for full, field in fields_of(table, prefix).items():
        leaf = full.removeprefix(prefix)
        if "." in leaf:
            continue
        told = " ".join((MORE.get(full) or texts.get(leaf, "")).split()).replace("|", "\\|")
        variable = (f"`{field.variable}`",) if variables else ()
        rows.append((f"`{leaf}`", _shown(field.default), *variable, told))
    return rows


def _shown(default: Any) -> str:
    if default is None:
        return ""
    return f"`{msgspec.json.encode(default).decode()}`"


if __name__ == "__main__":
    sys.stdout.write(reference())
