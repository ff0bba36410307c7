"""`tarry doctor` about a ledger's log: what is wrong with the topic, beforehand, and how long an append takes."""

import os
from pathlib import Path

from tarry.cli.finding import CheckResult
from tarry.cli.shared_log import MEASURE, check_log
from tarry.cluster.kafka_partition import KafkaPartition
from tarry.config import Config, load
from tests.cluster.brokers import Brokers


def config(folder: Path, cluster: Brokers, topic: str) -> Config:
    (folder / "key").write_bytes(os.urandom(32))
    given = {
        "ledger.log": "kafka",
        "ledger.topic": topic,
        "ledger.kafka": {"bootstrap.servers": cluster.addresses},
        "cluster.id_key_file": str(folder / "key"),
    }
    return load(environment={}, overrides=given).config


def found(config: Config) -> dict[str, list[CheckResult]]:
    by_level: dict[str, list[CheckResult]] = {"ok": [], "note": [], "bad": []}
    for result in check_log(config):
        by_level[result.level].append(result)
    return by_level


def test_it_says_what_is_wrong_with_the_topic_and_measures_an_append(
    one_broker: Brokers, tmp_path: Path
) -> None:
    topic = one_broker.make_topic("measured", min_insync_replicas="1")
    told = found(config(tmp_path, one_broker, topic))
    bad = " ".join(result.text for result in told["bad"])
    assert "make the topic with a replication factor of 3" in bad
    assert "set min.insync.replicas = 2" in bad
    assert any("all replicas are in one rack" in result.text for result in told["note"])
    (append,) = (result for results in told.values() for result in results if result.about == "log append")
    assert " ms (median of 20" in append.text
    partition = KafkaPartition({"bootstrap.servers": one_broker.addresses}, topic, 0)
    try:
        # What was written to measure is nothing that a reader takes.
        assert partition.ends() == (0, 21)
        assert {record.data for record in partition.read(0, 5.0)} == {MEASURE}
    finally:
        partition.close()


def test_a_missing_topic_and_a_wrong_setting_are_told(one_broker: Brokers, tmp_path: Path) -> None:
    (missing,) = check_log(config(tmp_path, one_broker, "missing"))
    assert missing.level == "bad"
    assert "make it with one partition" in missing.text
    given = config(tmp_path, one_broker, "missing")
    given.ledger.kafka["compresion"] = "x"
    (wrong,) = check_log(given)
    assert wrong.level == "bad"
    assert "compresion" in wrong.text
