"""`df.write.format("tarry")`: a DataFrame becomes scheduled messages, all of them or none (R10).

Tasks stage files; the driver hands their manifest to the server, and that one call is the acceptance. A name is used once, so
that a job that failed, or of which nobody knows whether it did, is simply run again with the same name. A stream names its
batches by its checkpoint and Spark's batch id: each is accepted once, however often it is tried.

Columns and their types are said in `tarry.index.incoming`. Options:

- `server`: the address of the server. `token_file`: a file with its token; otherwise the variable
  `TARRY_PIPELINE__TOKEN` of the driver. A token is never an option: options stand in plans and logs.
- `name`: of the batch, or of the stream.
- `destination`, `namespace`, `owner`: where a row says nothing. `timezone`: of timestamps without a zone.
- `due_column`, `payload_column` and so on: what a column is called, where that is not its field's own name.
- `index`: where executors find the folder of the index, if not where the server does.

Who is called where: the writers are made, and commit, in the driver's planner process; `write` runs on the executors.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from tarry.core.errors import Conflict, Invalid, Rejected, Unavailable
from tarry.core.names import check_name
from tarry.index import incoming
from tarry.index.manifest import BatchManifest, StagingPlace, new_token
from tarry.index.staging import StagedFiles, Stager, manifest_of, remove_staged
from tarry.pipeline.ledger_parts import TOKEN_VARIABLE, read_token
from tarry.pipeline.remote import call

_OPTIONS: Final = frozenset(
    {
        "server",
        "token_file",
        "name",
        "destination",
        "namespace",
        "owner",
        "timezone",
        "index",
        "path",
        "checkpointlocation",
        "queryname",
    }
)


class TaskStaged(WriterCommitMessage):
    """The files that a task has staged, with the batch's name and folder."""

    def __init__(self, name: str, token: str, staged: StagedFiles) -> None:
        self.name = name
        self.token = token
        self.staged = staged


class Job(msgspec.Struct, frozen=True):
    """The facts that a job needs. They travel to the executors, and holds no token."""

    options: dict[str, str]
    mapping: incoming.Mapping
    place: StagingPlace

    @classmethod
    def of(cls, options: Mapping[str, str], columns: Sequence[str]) -> "Job":
        """Check the terms before a row is read, and ask the server where to stage."""
        given = {name.lower(): value for name, value in options.items()}
        mapping = mapping_of(given)
        mapping.check(list(columns))
        check_name(_required(given, "name"), "name")
        place = msgspec.json.decode(_call(given, "GET", given["name"], "/place"), type=StagingPlace)
        if "index" in given:
            place = msgspec.structs.replace(place, index=given["index"])
        return cls(given, mapping, place)

    def stage(self, name: str, batches: Iterator[pa.RecordBatch]) -> TaskStaged:
        """Stage the rows of one partition. On an executor."""
        task = TaskContext.get()
        # A folder for each attempt: one that was given up and goes on all the same is in nobody's way.
        token = new_token(name)
        part = "0" if task is None else str(task.partitionId())
        stager = Stager(self.place, self.mapping, name, token, part)
        for batch in batches:
            if not stager.add(batch):
                break
        return TaskStaged(name, token, stager.finish())

    def adopt(self, messages: Sequence[Any], *, named: bool = False) -> None:
        """Have all staged files accepted; if they are not, they are removed."""
        staged = [message for message in messages if isinstance(message, TaskStaged)]
        if not any(message.staged.rows or message.staged.bad for message in staged):
            return
        try:
            manifest: BatchManifest = manifest_of(
                self.place, (message.staged for message in staged), named=named
            )
            _call(self.options, "PUT", staged[0].name, "", msgspec.json.encode(manifest))
        except (Rejected, Conflict):
            self.remove(staged)
            raise

    def remove(self, messages: Sequence[Any]) -> None:
        """Delete files that are known to be staged for nothing; retention finds others."""
        for message in messages:
            if isinstance(message, TaskStaged):
                remove_staged(self.place, message.token)


class BulkWriter(DataSourceArrowWriter):
    """Schedules a DataFrame as one batch."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskStaged:
        """Stage one partition. On an executor."""
        return self._job.stage(self._job.options["name"], iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Have the batch accepted."""
        self._job.adopt(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Some task failed: nothing was accepted."""
        self._job.remove(messages)


class BulkStreamWriter(DataSourceStreamArrowWriter):
    """Schedules each micro-batch of a stream as a batch, once."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskStaged:
        """Stage one partition of a micro-batch. On an executor."""
        task = TaskContext.get()
        assert task is not None
        query = task.getLocalProperty("sql.streaming.queryId")
        batch = task.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            raise Unavailable("this Spark does not say which micro-batch a task belongs to")
        # The query's id is its checkpoint's: another checkpoint counts its batches anew.
        return self._job.stage(f"{self._job.options['name']}-{query[:8]}-{batch}", iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Have the micro-batch accepted; it may have been before."""
        self._job.adopt(messages, named=True)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Some task failed: nothing was accepted now."""
        self._job.remove(messages)


def mapping_of(options: Mapping[str, str]) -> incoming.Mapping:
    """The mapping of columns in the options; raises `Invalid` for one that is not known."""
    columns = {}
    for name in options:
        field = name.removesuffix("_column")
        if field != name and field in incoming.FIELDS:
            columns[field] = options[name]
        elif name not in _OPTIONS:
            raise Invalid(name, "is not an option that is known here")
    return incoming.Mapping(
        columns=columns, destination=options.get("destination"), namespace=options.get("namespace"),
        owner=options.get("owner", ""), timezone=options.get("timezone", "UTC"),
    )  # fmt: skip


def _call(options: Mapping[str, str], method: str, name: str, below: str, body: bytes | None = None) -> bytes:
    token = read_token(options.get("token_file")) or os.environ.get(TOKEN_VARIABLE)
    path = f"/v1/batches/{quote(name, safe='')}{below}"
    return call(_required(options, "server"), token, method, path, body)


def _required(options: Mapping[str, str], name: str) -> str:
    if not options.get(name):
        raise Invalid(name, "is missing: give it as an option")
    return options[name]
