"""Many messages of one request, scheduled as columns: a bulk publish costs a fraction of its messages one by one."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tarry.core.errors import TarryError
from tarry.core.messages.message import Message
from tarry.engine.api import Columns
from tarry.engine.engine import Engine
from tarry.ledger.columns import Contents, Numbers, bytes_column, coded, int32_column, no_numbers

MOST: Final = 4096
"""Messages that are handed to the engine at once: few enough that what is due meanwhile is still on time."""


async def schedule(engine: Engine, messages: Sequence[Message]) -> list[str | TarryError]:
    """Schedule messages of one owner and door; gives their ids, or why not, in order."""
    done: list[str | TarryError] = []
    for start in range(0, len(messages), MOST):
        done += await _accepted(engine, messages[start : start + MOST])
    return done


async def _accepted(engine: Engine, messages: Sequence[Message]) -> list[str | TarryError]:
    done = await engine.schedule_columns(columns_of(messages), messages[0])
    ids: list[str | TarryError] = [one.decode() for one in done.ids.tolist()]
    for row, error in done.errors.items():
        ids[row] = error
    return ids


def columns_of(messages: Sequence[Message]) -> Columns:
    """Messages with due instants as columns."""
    count = len(messages)
    due = np.array([one.due_at_ms for one in messages], np.int64)
    contents = Contents(
        count,
        coded([one.owner for one in messages]),
        bytes_column([one.payload for one in messages]),
        _keys(messages),
        _ttls(messages),
        _headers(messages),
    )
    destinations = coded([one.destination for one in messages])
    return Columns(destinations, Numbers(due, np.ones(count, np.bool_)), no_numbers(count), contents)


def _keys(messages: Sequence[Message]) -> Any:
    keys = [one.key for one in messages]
    return None if keys.count(None) == len(keys) else pa.array(keys, pa.string())


def _ttls(messages: Sequence[Message]) -> Numbers | None:
    given = [one.ttl_ms is not None for one in messages]
    if not any(given):
        return None
    return Numbers(np.array([one.ttl_ms or 0 for one in messages], np.int64), np.array(given, np.bool_))


def _headers(messages: Sequence[Message]) -> Any:
    """Few different ones, mostly: each is made once."""
    different, codes = coded([tuple(one.headers.items()) for one in messages])
    if different == [()]:
        return None
    ends = np.cumsum([0, *map(len, different)], dtype=np.int32)
    names = _strings([name for pairs in different for name, _ in pairs])
    values = _strings([value for pairs in different for _, value in pairs])
    return pa.MapArray.from_arrays(int32_column(ends), names, values).take(int32_column(codes))


def _strings(texts: list[str]) -> Any:
    """A column of strings, by its buffers: `pa.array` would import pandas on first use, and hold everything up."""
    column = bytes_column([text.encode() for text in texts])
    return pa.StringArray.from_buffers(len(texts), *column.buffers()[1:])
