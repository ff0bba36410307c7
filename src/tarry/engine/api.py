"""The names of the engine that doors may use beside the façade: value types, answers, and bounds.

Where in the engine each is made is no concern of a door; `.importlinter` keeps doors to this module, `engine` and `answer`.
"""

from tarry.engine.admission.adoption import BatchView
from tarry.engine.admission.columns import COLUMNS, Columns, ColumnsScheduled, columns_of
from tarry.engine.admission.named_rows import NAMED, in_columns, messages_of
from tarry.engine.answer import Answer, failed, settled
from tarry.engine.due.due_batch import DueBatch
from tarry.engine.namespaces.catalogue import EMPTY
from tarry.engine.queries.commands import Ending
from tarry.engine.queries.delayed_entries import DelayedEntry
from tarry.engine.queries.upcoming import MAX_BUCKETS, Upcoming
from tarry.engine.repeats.repeats import RepeatCondition, RepeatPage, RepeatView
from tarry.engine.topics.consumer import Consumer
from tarry.engine.topics.entries import NewEntry, Received
from tarry.engine.topics.entry_batch import EntryBatch, about_bytes, ids_of
from tarry.engine.topics.entry_log import EntryLog
from tarry.engine.topics.retention import backlog_bytes, delayed_count
from tarry.engine.topics.subscription import Subscription, SubscriptionType
from tarry.engine.topics.topic import Topic
from tarry.engine.topics.topic_records import FULL
from tarry.engine.topics.topics import MAX_PARTITIONS, Published, Topics, TopicStats
from tarry.engine.upkeep.backups import Backup

__all__ = [
    "COLUMNS",
    "EMPTY",
    "FULL",
    "MAX_BUCKETS",
    "MAX_PARTITIONS",
    "NAMED",
    "Answer",
    "Backup",
    "BatchView",
    "Columns",
    "ColumnsScheduled",
    "Consumer",
    "DelayedEntry",
    "DueBatch",
    "Ending",
    "EntryBatch",
    "EntryLog",
    "NewEntry",
    "Published",
    "Received",
    "RepeatCondition",
    "RepeatPage",
    "RepeatView",
    "Subscription",
    "SubscriptionType",
    "Topic",
    "TopicStats",
    "Topics",
    "Upcoming",
    "about_bytes",
    "backlog_bytes",
    "columns_of",
    "delayed_count",
    "failed",
    "ids_of",
    "in_columns",
    "messages_of",
    "settled",
]
