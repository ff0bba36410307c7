"""The parts of the benchmark, each of which can be measured by itself."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bench import (
    bulk,
    cluster,
    dapr,
    http_layers,
    idle,
    lateness,
    matrix,
    matrix_load,
    memory,
    names,
    pipeline,
    pulsar,
    restart,
    schedule,
    topics,
    tricks,
    waiting,
)
from bench.clients import measure as clients
from bench.plan import PAYLOAD_BYTES, SMALL_BYTES
from bench.run import Run


@dataclass(frozen=True)
class Part:
    """One part."""

    name: str
    about: str
    measure: Callable[[Run], None]
    minutes: float
    """The minutes that it takes at the normal size on two idle cores, once everything is fetched."""
    usual: bool = True
    """Whether it belongs to a run that names no parts."""
    apart: bool = True
    """Whether all of Tarry that it measures runs in processes of its own: only these can be another commit's."""


PARTS: Final = (
    Part("schedule", "messages a second taken in; peers; the machine's raw limits", schedule.measure, 5),
    Part(
        "clients",
        "client libraries: one caller, 256 callers, a worker; beside redis-py, BullMQ, Celery and procrastinate",
        clients.measure,
        4,
    ),
    Part("lateness", "how late messages are; peers", lateness.measure, 5),
    Part("memory", "ten million pending", memory.measure, 2),
    Part("names", "commands by name beside ten million pending", names.measure, 10),
    Part("topics", "a hundred thousand topics, a million owners: cost and stalls", topics.measure, 4),
    Part("restart", "SIGKILL with a million pending", restart.measure, 1),
    Part(
        "cluster",
        "the ledger on three brokers beside the disk; takeovers",
        cluster.measure,
        8,
        usual=False,
        apart=False,
    ),
    Part("pulsar", "the Pulsar door beside a real Pulsar", pulsar.measure, 8),
    Part("dapr", "the Dapr door", dapr.measure, 3),
    Part("matrix", "the Matrix door beside Synapse's own delayed events", matrix.measure, 5),
    Part("pipeline", "index stream, cascade, lateness beside a cascade", pipeline.measure, 3, apart=False),
    Part("bulk", "ten million from a DataFrame", bulk.measure, 5, apart=False),
    Part(
        "waiting",
        "ten million in the index: memory, restart, lateness",
        lambda run: waiting.measure(run, run.plan.waiting, PAYLOAD_BYTES),
        4,
    ),
    Part("idle", "what an idle pipeline costs", idle.measure, 2),
    Part(
        "many",
        "the same as waiting with a hundred million",
        lambda run: waiting.measure(run, run.plan.many, SMALL_BYTES),
        30,
        usual=False,
    ),
    Part(
        "tricks",
        "what each trick for speed earns: bursts with it and without it",
        tricks.measure,
        30,
        usual=False,
        apart=False,
    ),
    Part(
        "http",
        "ways to serve HTTP: the kit, without its tricks, and uvicorn with plain ASGI",
        http_layers.measure,
        8,
        usual=False,
        apart=False,
    ),
    Part("conference", "10,000 participants on the Matrix door", matrix_load.measure, 33, usual=False),
)
NAMES: Final = [part.name for part in PARTS]
