"""The log of a ledger that several servers share, for `tarry doctor`: whether its topic is safe, and how long an append takes.

An append is measured by records that are not Tarry's. Every reader passes over them (R14), also while a server owns the ledger.
"""

import statistics
import time
from collections.abc import Iterator
from typing import Final

from tarry.cli.finding import CheckResult
from tarry.cluster.inspection import topic_settings
from tarry.cluster.kafka_partition import KafkaPartition
from tarry.cluster.standby import PARTITION
from tarry.cluster.topic_safety import doubtful, unsafe
from tarry.config import Config, ConfigError
from tarry.config.kafka import kafka_settings
from tarry.core.errors import TarryError, Unavailable

ABOUT: Final = "ledger log"
APPENDS: Final = 20
WITHIN_S: Final = 10.0
SLOW_APPEND_MS: Final = 20.0
MEASURE: Final = b"tarry doctor"


def check_log(config: Config) -> Iterator[CheckResult]:
    """The topic, as the server looks at it before it stands by; and its speed."""
    topic = config.ledger.topic
    try:
        client = kafka_settings(config)
        found = topic_settings(client, topic)
    except (ConfigError, TarryError) as error:
        yield CheckResult(ABOUT, "bad", str(error))
        return
    reasons = unsafe(found)
    for reason in reasons:
        yield CheckResult(ABOUT, "bad", reason)
    if not reasons:
        replicas = min(map(len, found.replicas))
        yield CheckResult(ABOUT, "ok", f"topic {topic} has {replicas} replicas and loses nothing by itself")
    for warning in doubtful(found):
        yield CheckResult(ABOUT, "note", warning)
    yield _measured(KafkaPartition(client, topic, PARTITION, outcome_within_s=WITHIN_S))


def _measured(partition: KafkaPartition) -> CheckResult:
    about = "log append"
    try:
        # The first waits for connections.
        took_ms = [_timed_append_ms(partition) for _ in range(APPENDS + 1)][1:]
    except TarryError as error:
        return CheckResult(about, "bad", str(error))
    finally:
        partition.close()
    middle_ms = statistics.median(took_ms)
    text = f"{middle_ms:.2f} ms (median of {APPENDS}, worst {max(took_ms):.1f} ms)"
    if middle_ms > SLOW_APPEND_MS:
        return CheckResult(
            about,
            "note",
            f"{text}: slow, and every answer waits for one; the slowest in-sync replica sets it",
        )
    return CheckResult(about, "ok", text)


def _timed_append_ms(partition: KafkaPartition) -> float:
    began_s = time.perf_counter()
    partition.send(MEASURE)
    told = partition.deliveries(2 * WITHIN_S)
    if not told or told[0].error:
        raise Unavailable(
            f"{partition.name} did not take a record: {told[0].error if told else 'no answer came'}"
        )
    return (time.perf_counter() - began_s) * 1000
