"""`df.write.format("tarry")`: a DataFrame is scheduled as a whole, once for each name, or refused with the rows to blame."""

import json
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, expr

from tarry.ledger.record import Put, decode_put
from tests.processes import ServerProcess, running

TOKEN = "bulk-test-secret"
CONFIG = f"""
[[tokens]]
name = "job"
token = "{TOKEN}"
roles = ["produce"]
"""


class Bulk:
    """A server, and what was staged for it."""

    def __init__(self, server: ServerProcess, data: Path, token_file: Path) -> None:
        self.server = server
        self.staged = data / "tables" / "index" / "staged"
        self.token_file = token_file
        self.client = httpx.Client(
            base_url=server.url, headers={"authorization": f"Bearer {TOKEN}"}, trust_env=False
        )

    def write(self, rows: DataFrame, name: str, **options: str) -> None:
        self._options(rows.write.format("tarry"), name, options).mode("append").save()

    def _options(self, writer: Any, name: str, options: dict[str, str]) -> Any:
        given = {"server": self.server.url, "token_file": str(self.token_file), "name": name, **options}
        for option, value in given.items():
            writer = writer.option(option, value)
        return writer

    def stream(self, rows: DataFrame, name: str, checkpoint: Path, **options: str) -> None:
        writer = self._options(rows.writeStream.format("tarry"), name, options)
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()

    def batches(self) -> dict[str, dict[str, Any]]:
        found = self.client.get("/v1/batches").json()["batches"]
        return {batch["name"]: batch for batch in found}

    def puts(self) -> list[Put]:
        """Every message that was staged, by due instant."""
        bodies = [
            body
            for path in sorted(self.staged.rglob("*.parquet"))
            for body in pq.ParquetFile(path, page_checksum_verification=True)
            .read(["body"])["body"]
            .to_pylist()
        ]
        return sorted(map(decode_put, bodies), key=lambda put: (put.fire_at_ms, put.payload))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, Path]]:
    folder = tmp_path_factory.mktemp("bulk") / "data"
    with running(folder, CONFIG) as process:
        yield process, folder


@pytest.fixture
def bulk(server: tuple[ServerProcess, Path], tmp_path: Path) -> Iterator[Bulk]:
    token_file = tmp_path / "token"
    token_file.write_text(TOKEN + "\n")
    bulk = Bulk(*server, token_file)
    shutil.rmtree(bulk.staged, ignore_errors=True)
    yield bulk
    bulk.client.close()


def due_at(hour: int) -> datetime:
    return datetime(2099, 5, 4, hour, 30, tzinfo=UTC)


def ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)


def test_columns_go_by_name_and_values_by_their_types(spark: SparkSession, bulk: Bulk) -> None:
    rows = spark.createDataFrame(
        [
            (due_at(9), {"id": 1, "what": "a"}, "orders", "k1", "ann", {"h": "v"}, 1000),
            (due_at(10), {"id": 2, "what": "b"}, "shop/eu/orders", None, "bob", None, None),
        ],
        "due timestamp, payload struct<id: int, what: string>, destination string, key string, owner string,"
        " headers map<string, string>, ttl_ms long",
    )
    bulk.write(rows, "types")
    assert bulk.batches()["types"]["count"] == 2
    assert bulk.batches()["types"]["namespaces"] == ["public/default", "shop/eu"]
    first, second = bulk.puts()
    assert (first.due_at_ms, first.fire_at_ms) == (ms(due_at(9)), ms(due_at(9)))
    assert json.loads(first.payload) == {"id": 1, "what": "a"}
    assert (first.destination, first.namespace) == ("persistent://public/default/orders", "public/default")
    assert (first.key, first.owner, first.headers, first.ttl_ms) == ("k1", "ann", {"h": "v"}, 1000)
    assert (first.door, first.listed, first.origin, first.group) == ("bulk", False, None, None)
    assert (second.destination, second.namespace) == ("persistent://shop/eu/orders", "shop/eu")
    assert (second.key, second.headers, second.ttl_ms) == (None, {}, None)


def test_times_of_every_type_mean_what_is_said(spark: SparkSession, bulk: Bulk) -> None:
    at = "2099-05-04 09:30:00.0001"
    shapes = {
        "zoned": f"timestamp'{at} UTC'",
        "unzoned": f"timestamp_ntz'{at}'",
        "text": f"'{at}'",
        "number": f"{ms(due_at(9)) + 1}L",
    }
    for name, shape in shapes.items():
        rows = spark.range(1).select(expr(shape).alias("at"), expr("'x'").alias("text"))
        zone = {"timezone": "Europe/Berlin"} if name in ("unzoned", "text") else {}
        bulk.write(rows, f"at-{name}", due_column="at", payload_column="text", destination="t", **zone)
    berlin_ms = ms(due_at(9)) - 2 * 3_600_000 + 1
    dues = sorted(put.due_at_ms or 0 for put in bulk.puts())
    assert dues == [berlin_ms, berlin_ms, ms(due_at(9)) + 1, ms(due_at(9)) + 1]


def test_the_same_job_again_is_the_same_batch(spark: SparkSession, bulk: Bulk) -> None:
    rows = spark.range(1000).select(
        (col("id") * 1000 + 4_000_000_000_000 - 10_000_000_000).alias("due"),
        expr("cast(id as string)").alias("payload"),
    )
    bulk.write(rows.repartition(2), "again", destination="t")
    bulk.write(rows.repartition(3), "again", destination="t")
    assert bulk.batches()["again"]["count"] == 1000
    with pytest.raises(Exception, match="other messages"):
        bulk.write(rows.limit(999), "again", destination="t")
    # What was refused leaves nothing behind; what was staged twice is for retention.
    assert len(bulk.puts()) == 2000


def test_a_bad_row_is_named_and_nothing_is_scheduled(spark: SparkSession, bulk: Bulk) -> None:
    rows = spark.range(100).coalesce(1)
    rows = rows.select(
        expr("if(id = 41, 'soon', '2099-05-04T09:30:00Z')").alias("due"), expr("'x'").alias("payload")
    )
    with pytest.raises(Exception, match=r"row 42.*due: is not an instant"):
        bulk.write(rows, "bad", destination="t")
    assert "bad" not in bulk.batches()
    assert bulk.puts() == []


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ("1L as due, 'x' as payload, 2 as colour", {"destination": "t"}, "colour: is not a column"),
        ("1L as due, 'x' as payload", {}, "destination: there is neither"),
        ("'x' as payload", {"destination": "t"}, "due: there must be one column"),
        ("1L as due, 'x' as payload", {"destination": "t", "speed": "9"}, "speed: is not an option"),
        ("1L as due, 'x' as payload", {"destination": "t", "name": "a/b"}, "name: a name is"),
        ("1L as due, 'x' as payload", {"destination": "t", "timezone": "Mars"}, "timezone: Mars is not"),
        ("1.5 as due, 'x' as payload", {"destination": "t"}, "due: is a column of"),
        ("1L as due, 3 as payload", {"destination": "t"}, "payload: is a column of"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    spark: SparkSession, bulk: Bulk, columns: str, options: dict[str, str], said: str
) -> None:
    rows = spark.range(1).selectExpr(*columns.split(", "))
    with pytest.raises(Exception, match=said):
        bulk.write(rows, **{"name": "refused", **options})
    assert "refused" not in bulk.batches()


def test_a_wrong_token_is_refused_and_never_shown(spark: SparkSession, bulk: Bulk) -> None:
    bulk.token_file.write_text("another-secret")
    rows = spark.range(1).selectExpr("1L as due", "'x' as payload")
    with pytest.raises(Exception, match="token is not known") as caught:
        bulk.write(rows, "locked", destination="t")
    assert "another-secret" not in str(caught.value)


def test_a_stream_is_scheduled_once_also_when_a_batch_is_tried_again(
    spark: SparkSession, bulk: Bulk, tmp_path: Path
) -> None:
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    source.mkdir()
    rows = spark.readStream.schema("due long, payload string").json(str(source))
    for number in range(2):
        lines = [
            json.dumps({"due": 4_000_000_000_000 - number - n, "payload": f"{number}-{n}"}) for n in range(50)
        ]
        (source / f"{number}.json").write_text("\n".join(lines))
        bulk.stream(rows, "flow", checkpoint, destination="t")
    first = {name: batch for name, batch in bulk.batches().items() if name.startswith("flow-")}
    assert [batch["count"] for batch in first.values()] == [50, 50]
    # Spark died after the acceptance and before it wrote down that the batch was done: it tries again.
    for name in ("1", ".1.crc"):
        (checkpoint / "commits" / name).unlink()
    bulk.stream(rows, "flow", checkpoint, destination="t")
    # Another checkpoint is another stream, and begins anew.
    bulk.stream(rows, "flow", tmp_path / "other", destination="t")
    after = {name: batch for name, batch in bulk.batches().items() if name.startswith("flow-")}
    assert {name: after[name] for name in first} == first
    assert [batch["count"] for name, batch in after.items() if name not in first] == [100]
