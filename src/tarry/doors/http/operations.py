"""Every operation of the door, one row for each method of each path. What has no row is not served.

From the rows follow the routes, the checks of access, the OpenAPI document and `docs/rights.md`. Bodies and answers are types
of `shapes`.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from tarry.core.limits import MAX_IDEMPOTENCY_KEY_BYTES
from tarry.core.rules.policy import Effective, Policy, PolicyChanges
from tarry.core.tenants.rights import (
    CONSUME,
    FIGURES,
    GOVERN,
    GOVERN_ALL,
    GOVERN_LISTED,
    GOVERN_OWN,
    OPEN,
    PRODUCE,
    PRODUCE_LISTED,
    PRODUCE_OWN,
    SEE_LISTED,
    SEE_OWN,
    TOKEN,
    USE,
    Right,
)
from tarry.doors.http import shapes
from tarry.doors.http.messages import commands, pauses, repeats
from tarry.doors.http.messages.batches import MAX_BATCH_KEY_BYTES, BatchEndpoints
from tarry.doors.http.messages.bulk import BulkEndpoints
from tarry.doors.http.messages.cancels import CancelEndpoint
from tarry.doors.http.messages.commands import CommandEndpoints
from tarry.doors.http.messages.messages import Messages
from tarry.doors.http.messages.pauses import PauseEndpoints
from tarry.doors.http.messages.repeats import RepeatEndpoints
from tarry.doors.http.operator import figures
from tarry.doors.http.operator.backups import BackupEndpoints
from tarry.doors.http.operator.ledger import LedgerEndpoints
from tarry.doors.http.operator.overview import OverviewEndpoints
from tarry.doors.http.operator.policies import MERGE_PATCH, PolicyEndpoints
from tarry.doors.http.operator.status import StatusEndpoints
from tarry.doors.http.topics import delayed
from tarry.doors.http.topics.delayed import DelayedEndpoints
from tarry.doors.http.topics.events import EventEndpoint
from tarry.doors.http.topics.subscriptions import SubscriptionEndpoints
from tarry.doors.http.topics.topics import TopicEndpoints
from tarry.engine.api import TopicStats, Upcoming
from tarry.http.application import Outcome
from tarry.http.request import Request
from tarry.index.manifest import BatchManifest, StagingPlace

JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
ARROW: Final = "application/vnd.apache.arrow.stream"
EVENTS: Final = "text/event-stream"
OCTETS: Final = "application/octet-stream"
PROMETHEUS: Final = "text/plain"

_NAME: Final = "/v1/names/{tenant}/{namespace}/{message}"
_REPEAT: Final = "/v1/repeats/{tenant}/{namespace}/{name}"
_TOPIC: Final = "/v1/topics/{tenant}/{namespace}/{topic}"
_DELAYED: Final = _TOPIC + "/delayed"
_SUBSCRIPTION: Final = _TOPIC + "/subscriptions/{name}"
_ANY_OBJECT: Final = {"type": "object"}
_LINES: Final = {"type": "string", "description": "One JSON object in each line"}
_BYTES: Final[dict[str, Any]] = {}

Schema = type | Mapping[str, Any]


class Endpoints(NamedTuple):
    """The objects that serve the operations, by their subjects."""

    messages: Messages
    batches: BatchEndpoints
    cancels: CancelEndpoint
    bulk: BulkEndpoints
    repeats: RepeatEndpoints
    pauses: PauseEndpoints
    commands: CommandEndpoints
    topics: TopicEndpoints
    delayed: DelayedEndpoints
    subscriptions: SubscriptionEndpoints
    events: EventEndpoint
    policies: PolicyEndpoints
    ledger: LedgerEndpoints
    backups: BackupEndpoints
    overview: OverviewEndpoints
    status: StatusEndpoints


class Operation(NamedTuple):
    """One method of one path."""

    method: str
    path: str
    right: Right
    """The role and the namespaces that it requires."""
    endpoint: Callable[[Endpoints], Callable[[Request], Outcome]]
    """The function that serves it."""
    name: str
    summary: str
    answers: Mapping[int, Mapping[str, Schema] | None]
    """Status -> content type -> schema; None for an empty body."""
    body: Mapping[str, Schema] | None = None
    body_required: bool = True
    query: type[msgspec.Struct] | None = None
    refusals: tuple[int, ...] = ()
    """Besides the usual ones: 400, 401, 403, and 503 while the server starts or stops."""
    idempotency_key: int = 0
    """The longest that is taken; 0 where none is."""
    streams: bool = False
    """Whether the endpoint reads the body piece by piece; any other gets it whole."""
    head: bool = True
    """Whether what a GET serves is served to a HEAD: a stream without its body would be one that nobody reads."""


OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        "POST", "/v1/messages", PRODUCE, lambda at: at.messages.schedule, "schedule", "Schedule a message",
        {201: {JSON: shapes.ScheduledAnswer}, 200: {JSON: shapes.ScheduledAnswer}},
        {JSON: shapes.ScheduleRequest}, refusals=(408, 409, 413, 415, 429), idempotency_key=MAX_IDEMPOTENCY_KEY_BYTES,
    ),
    Operation(
        "GET", "/v1/messages", GOVERN, lambda at: at.messages.list, "listMessages", "List messages",
        {200: {JSON: shapes.MessagesAnswer}}, query=shapes.ListQuery,
    ),
    Operation(
        "POST", "/v1/messages/batch", PRODUCE, lambda at: at.batches.schedule, "scheduleBatch",
        "Schedule many messages; each line or row has its own answer, in order",
        {200: {NDJSON: _LINES, ARROW: _BYTES}}, {NDJSON: _LINES, ARROW: _BYTES},
        query=shapes.BatchDefaults, refusals=(408, 413, 415, 429), idempotency_key=MAX_BATCH_KEY_BYTES,
        streams=True,
    ),
    Operation(
        "POST", "/v1/messages/batch/cancel", PRODUCE, lambda at: at.cancels.cancel, "cancelMany",
        "Cancel many messages; each line has its own answer, as soon as its message has ended",
        {200: {NDJSON: _LINES}}, {NDJSON: _LINES}, refusals=(408, 413, 415, 429),
    ),
    Operation(
        "GET", "/v1/messages/{id}", SEE_OWN, lambda at: at.messages.get, "getMessage", "Look at a message",
        {200: {JSON: shapes.MessageAnswer}}, refusals=(404,),
    ),
    Operation(
        "DELETE", "/v1/messages/{id}", PRODUCE_OWN, lambda at: at.messages.cancel, "deleteMessage", "Cancel a message",
        {200: {JSON: shapes.MessageAnswer}}, refusals=(404, 409),
    ),
    Operation(
        "POST", "/v1/messages/{id}/cancel", PRODUCE_OWN, lambda at: at.messages.cancel, "cancelMessage", "Cancel a message",
        {200: {JSON: shapes.MessageAnswer}}, refusals=(404, 409),
    ),
    Operation(
        "POST", "/v1/messages/{id}/send", PRODUCE_OWN, lambda at: at.messages.send, "sendMessage", "Make a message due now",
        {200: {JSON: shapes.MessageAnswer}}, refusals=(404, 409, 429),
    ),
    Operation(
        "POST", "/v1/messages/{id}/restart", PRODUCE_OWN, lambda at: at.messages.restart, "restartMessage",
        "Start its original delay again, or give it a new time",
        {200: {JSON: shapes.MessageAnswer}}, {JSON: shapes.RestartRequest}, body_required=False,
        refusals=(404, 408, 409, 413, 415, 429),
    ),
    Operation(
        "POST", "/v1/messages/{id}/retry", PRODUCE_OWN, lambda at: at.messages.retry, "retryMessage",
        "Accept a message that has failed once more, due now or at a new time",
        {200: {JSON: shapes.MessageAnswer}}, {JSON: shapes.RetryRequest}, body_required=False,
        refusals=(404, 408, 409, 413, 415, 429),
    ),
    Operation(
        "POST", "/v1/messages/{id}/pause", PRODUCE_OWN, lambda at: at.messages.pause, "pauseMessage",
        "Keep a message from going out until it is resumed; what is left of its delay is frozen",
        {200: {JSON: shapes.MessageAnswer}}, refusals=(404, 409, 429),
    ),
    Operation(
        "POST", "/v1/messages/{id}/resume", PRODUCE_OWN, lambda at: at.messages.resume, "resumeMessage",
        "Let the delay of a paused message go on", {200: {JSON: shapes.MessageAnswer}}, refusals=(404, 409, 429),
    ),
    # A name can be guessed: what it reaches must be the token's to produce.
    Operation(
        "GET", _NAME, PRODUCE, lambda at: at.messages.get, "getNamed", "Look at the message that has a name",
        {200: {JSON: shapes.MessageAnswer}}, refusals=(404,),
    ),
    Operation(
        "DELETE", _NAME, PRODUCE, lambda at: at.messages.cancel, "deleteNamed", "Cancel the message that has a name",
        {200: {JSON: shapes.MessageAnswer}}, refusals=(404, 409),
    ),
    Operation(
        "POST", _NAME + "/cancel", PRODUCE, lambda at: at.messages.cancel, "cancelNamed", "Cancel the message that has a name",
        {200: {JSON: shapes.MessageAnswer}}, refusals=(404, 409),
    ),
    Operation(
        "POST", _NAME + "/send", PRODUCE, lambda at: at.messages.send, "sendNamed", "Make the message that has a name due now",
        {200: {JSON: shapes.MessageAnswer}}, refusals=(404, 409, 429),
    ),
    Operation(
        "POST", _NAME + "/restart", PRODUCE, lambda at: at.messages.restart, "restartNamed",
        "Start the original delay of the message that has a name again, or give it a new time",
        {200: {JSON: shapes.MessageAnswer}}, {JSON: shapes.RestartRequest}, body_required=False,
        refusals=(404, 408, 409, 413, 415, 429),
    ),
    Operation(
        "POST", _NAME + "/retry", PRODUCE, lambda at: at.messages.retry, "retryNamed",
        "Accept the failed message that has a name once more, due now or at a new time",
        {200: {JSON: shapes.MessageAnswer}}, {JSON: shapes.RetryRequest}, body_required=False,
        refusals=(404, 408, 409, 413, 415, 429),
    ),
    Operation(
        "POST", _NAME + "/pause", PRODUCE, lambda at: at.messages.pause, "pauseNamed",
        "Keep the message that has a name from going out until it is resumed",
        {200: {JSON: shapes.MessageAnswer}}, refusals=(404, 409, 429),
    ),
    Operation(
        "POST", _NAME + "/resume", PRODUCE, lambda at: at.messages.resume, "resumeNamed",
        "Let the delay of the paused message that has a name go on", {200: {JSON: shapes.MessageAnswer}}, refusals=(404, 409, 429),
    ),
    Operation(
        "GET", "/v1/pauses", GOVERN, lambda at: at.pauses.list, "listPauses", "List paused topics, owners and destinations",
        {200: {JSON: pauses.PausesAnswer}}, query=pauses.PausesQuery,
    ),
    Operation(
        "POST", "/v1/pauses", GOVERN, lambda at: at.pauses.pause, "pausePlace",
        "Hold the messages of a topic, an owner or a destination once they are due",
        {200: {JSON: pauses.PauseAnswer}}, {JSON: pauses.PlaceRequest}, refusals=(408, 409, 413, 415),
    ),
    Operation(
        "POST", "/v1/pauses/resume", GOVERN, lambda at: at.pauses.resume, "resumePlace",
        "Let the messages of a paused topic, owner or destination go out again, in order",
        {200: {JSON: pauses.PauseAnswer}}, {JSON: pauses.PlaceRequest}, refusals=(404, 408, 413, 415),
    ),
    Operation(
        "POST", "/v1/commands", GOVERN, lambda at: at.commands.ask, "askCommand",
        "Count the messages that a command by filter is for; nothing is done before it is confirmed",
        {201: {JSON: commands.CommandAnswer}}, {JSON: commands.CommandRequest}, refusals=(408, 409, 413, 415),
    ),
    Operation(
        "GET", "/v1/commands", GOVERN, lambda at: at.commands.list, "listCommands", "List commands by filter, the newest first",
        {200: {JSON: commands.CommandsAnswer}}, query=commands.CommandsQuery,
    ),
    Operation(
        "GET", "/v1/commands/{command}", GOVERN_OWN, lambda at: at.commands.get, "getCommand",
        "Look at a command by filter: its count, and how much is done", {200: {JSON: commands.CommandAnswer}}, refusals=(404,),
    ),
    Operation(
        "POST", "/v1/commands/{command}/confirm", GOVERN_OWN, lambda at: at.commands.confirm, "confirmCommand",
        "Carry a command by filter out, whose count is the one given",
        {200: {JSON: commands.CommandAnswer}}, {JSON: commands.ConfirmRequest}, refusals=(404, 408, 409, 413, 415),
    ),
    Operation(
        "POST", "/v1/commands/{command}/stop", GOVERN_OWN, lambda at: at.commands.stop, "stopCommand",
        "End a command by filter where it is; what it has done stays done",
        {200: {JSON: commands.CommandAnswer}}, refusals=(404, 409),
    ),
    Operation(
        "GET", "/v1/batches", PRODUCE_LISTED, lambda at: at.bulk.list, "listBatches", "List adopted batches, the newest first",
        {200: {JSON: shapes.AdoptedBatchesAnswer}}, query=shapes.BatchesQuery,
    ),
    Operation(
        "PUT", "/v1/batches/{batch}", PRODUCE, lambda at: at.bulk.adopt, "adoptBatch",
        "Accept every message of a batch that was staged in the folder of the index, or none",
        {201: {JSON: shapes.AdoptedAnswer}, 200: {JSON: shapes.AdoptedAnswer}}, {JSON: BatchManifest},
        refusals=(408, 409, 413, 415, 429),
    ),
    Operation(
        "GET", "/v1/batches/{batch}", PRODUCE_OWN, lambda at: at.bulk.get, "getBatch", "Look at a batch",
        {200: {JSON: shapes.AdoptedAnswer}}, refusals=(404,),
    ),
    Operation(
        "DELETE", "/v1/batches/{batch}", PRODUCE_OWN, lambda at: at.bulk.cancel, "cancelBatch", "Cancel every message of a batch that has not ended",
        {200: {JSON: shapes.AdoptedAnswer}}, refusals=(404,),
    ),
    Operation(
        "GET", "/v1/batches/{batch}/place", PRODUCE_LISTED, lambda at: at.bulk.place, "placeOfBatch", "The staging place of a batch, and its terms",
        {200: {JSON: StagingPlace}},
    ),
    Operation(
        "GET", "/v1/repeats", PRODUCE, lambda at: at.repeats.list, "listRepeats", "List repeats by name, of a namespace or of all",
        {200: {JSON: repeats.RepeatsAnswer}}, query=repeats.RepeatsQuery,
    ),
    Operation(
        "PUT", _REPEAT, PRODUCE, lambda at: at.repeats.set, "setRepeat",
        "Begin a repeat, or begin it anew as it is asked for now; the same again changes nothing",
        {200: {JSON: repeats.RepeatAnswer}}, {JSON: repeats.RepeatRequest}, refusals=(408, 409, 413, 415, 429),
    ),
    Operation(
        "GET", _REPEAT, PRODUCE, lambda at: at.repeats.get, "getRepeat", "Look at a repeat, with its next five instants",
        {200: {JSON: repeats.RepeatAnswer}}, refusals=(404,),
    ),
    Operation(
        "DELETE", _REPEAT, PRODUCE, lambda at: at.repeats.remove, "removeRepeat",
        "End a repeat: no occurrence that is not due yet goes out", {204: None}, refusals=(404,),
    ),
    Operation(
        "POST", _REPEAT + "/pause", PRODUCE, lambda at: at.repeats.pause, "pauseRepeat",
        "Accept no more occurrences until it is resumed", {200: {JSON: repeats.RepeatAnswer}}, refusals=(404, 409),
    ),
    Operation(
        "POST", _REPEAT + "/resume", PRODUCE, lambda at: at.repeats.resume, "resumeRepeat",
        "Go on; missed occurrences are sent as the repeat says", {200: {JSON: repeats.RepeatAnswer}}, refusals=(404,),
    ),
    Operation(
        "GET", "/v1/topics", GOVERN_LISTED, lambda at: at.topics.list, "listTopics", "List topics",
        {200: {JSON: shapes.TopicsAnswer}}, query=shapes.TopicsQuery,
    ),
    Operation("PUT", _TOPIC, GOVERN, lambda at: at.topics.create, "createTopic", "Make a topic; one that is there stays", {204: None}),
    Operation(
        "GET", _TOPIC, USE, lambda at: at.topics.stats, "getTopic", "Figures of a topic",
        {200: {JSON: TopicStats}}, refusals=(404,),
    ),
    Operation(
        "DELETE", _TOPIC, GOVERN, lambda at: at.topics.delete, "deleteTopic", "Remove a topic with its entries, subscriptions, policy and schema",
        {204: None}, refusals=(404,),
    ),
    Operation(
        "POST", _TOPIC + "/messages", PRODUCE, lambda at: at.topics.publish, "publish", "Publish one entry, or many together as NDJSON",
        {201: {JSON: shapes.PublishAnswer}}, {JSON: shapes.PublishRequest, NDJSON: _LINES},
        refusals=(408, 409, 413, 415, 429),
    ),
    Operation(
        "GET", _DELAYED, USE, lambda at: at.delayed.list, "listDelayed", "List the entries of a topic that wait for their due instant",
        {200: {JSON: delayed.DelayedPageAnswer}}, query=delayed.DelayedQuery, refusals=(404,),
    ),
    Operation(
        "GET", _DELAYED + "/{entry_id}", USE, lambda at: at.delayed.get, "getDelayed", "Look at a delayed entry",
        {200: {JSON: delayed.DelayedAnswer}}, refusals=(404, 409),
    ),
    Operation(
        "DELETE", _DELAYED + "/{entry_id}", PRODUCE, lambda at: at.delayed.cancel, "cancelDelayed", "Cancel a delayed entry: no consumer gets it",
        {200: {JSON: delayed.DelayedAnswer}}, refusals=(404, 409),
    ),
    Operation(
        "POST", _DELAYED + "/{entry_id}/restart", PRODUCE, lambda at: at.delayed.restart, "restartDelayed", "Give a delayed entry another due instant",
        {200: {JSON: delayed.DelayedAnswer}}, {JSON: delayed.RescheduleRequest}, refusals=(404, 408, 409, 413, 415),
    ),
    Operation(
        "PUT", _SUBSCRIPTION, CONSUME, lambda at: at.subscriptions.subscribe, "subscribe", "Make a subscription, or find the one that is there",
        {200: {JSON: _ANY_OBJECT}}, {JSON: shapes.SubscribeRequest}, body_required=False,
        refusals=(408, 409, 413, 415),
    ),
    Operation(
        "GET", _SUBSCRIPTION, CONSUME, lambda at: at.subscriptions.stats, "getSubscription", "Figures of a subscription",
        {200: {JSON: _ANY_OBJECT}}, refusals=(404,),
    ),
    Operation(
        "DELETE", _SUBSCRIPTION, CONSUME, lambda at: at.subscriptions.unsubscribe, "unsubscribe", "End a subscription", {204: None}, refusals=(404,)
    ),
    Operation(
        "POST", _SUBSCRIPTION + "/receive", CONSUME, lambda at: at.subscriptions.receive, "receive", "Receive entries, waiting for the first one",
        {200: {JSON: shapes.ReceiveAnswer}}, {JSON: shapes.ReceiveRequest}, body_required=False,
        refusals=(404, 408, 409, 413, 415),
    ),
    Operation(
        "GET", _SUBSCRIPTION + "/events", CONSUME, lambda at: at.events.events, "events", "Receive entries as server-sent events",
        {200: {EVENTS: {"type": "string"}}}, query=shapes.EventsQuery, refusals=(404, 409), head=False,
    ),
    Operation(
        "POST", _SUBSCRIPTION + "/ack", CONSUME, lambda at: at.subscriptions.ack, "acknowledge", "Be done with entries",
        {204: None}, {JSON: shapes.AckRequest}, refusals=(404, 408, 413, 415),
    ),
    Operation(
        "POST", _SUBSCRIPTION + "/nack", CONSUME, lambda at: at.subscriptions.nack, "giveBack", "Give entries back to come again now",
        {204: None}, {JSON: shapes.NackRequest}, body_required=False, refusals=(404, 408, 413, 415),
    ),
    Operation(
        "POST", _SUBSCRIPTION + "/seek", CONSUME, lambda at: at.subscriptions.seek, "seek", "Go on reading somewhere else",
        {204: None}, {JSON: shapes.SeekRequest}, refusals=(404, 408, 409, 413, 415),
    ),
    *(
        operation
        for path, place, right in (
            ("/v1/policies/broker", "Broker", GOVERN_ALL),
            ("/v1/policies/namespaces/{tenant}/{namespace}", "Namespace", GOVERN),
            ("/v1/policies/topics/{tenant}/{namespace}/{topic}", "Topic", GOVERN),
        )
        for operation in (
            Operation(
                "GET", path, right, lambda at: at.policies.get, f"get{place}Policy", f"The policy of the {place.lower()}",
                {200: {JSON: {"anyOf": [Policy, Effective]}}}, query=shapes.PolicyQuery, refusals=(404,),
            ),
            Operation(
                "PUT", path, right, lambda at: at.policies.put, f"set{place}Policy", f"Set the policy of the {place.lower()}",
                {200: {JSON: Policy}}, {JSON: Policy}, refusals=(408, 413, 415),
            ),
            Operation(
                "PATCH", path, right, lambda at: at.policies.patch, f"change{place}Policy",
                f"Change fields of the policy of the {place.lower()}; null leaves a field to the level above",
                {200: {JSON: Policy}}, {JSON: PolicyChanges, MERGE_PATCH: PolicyChanges}, refusals=(408, 413, 415),
            ),
            Operation(
                "DELETE", path, right, lambda at: at.policies.delete, f"remove{place}Policy", f"Remove the policy of the {place.lower()}",
                {204: None},
            ),
        )
    ),
    Operation(
        "GET", "/v1/ledger", GOVERN_ALL, lambda at: at.ledger.show, "ledger", "The bounds of the ledger",
        {200: {JSON: shapes.LedgerAnswer}},
    ),
    Operation(
        "GET", "/v1/ledger/frames", GOVERN_ALL, lambda at: at.ledger.frames, "ledgerFrames",
        "A range of the ledger byte for byte, as far as one segment goes",
        {200: {OCTETS: _BYTES}}, query=shapes.FramesQuery, refusals=(404,), head=False,
    ),
    Operation(
        "POST", "/v1/backups", GOVERN_ALL, lambda at: at.backups.begin, "beginBackup",
        "Hold the ledger and snapshot the registry, for a backup",
        {201: {JSON: shapes.BackupAnswer}}, {JSON: shapes.BackupRequest}, body_required=False,
        refusals=(408, 409, 413, 415),
    ),
    Operation(
        "PUT", "/v1/backups/{backup}", GOVERN_ALL, lambda at: at.backups.renew, "renewBackup", "A backup goes on",
        {200: {JSON: shapes.BackupAnswer}}, {JSON: shapes.BackupRequest}, body_required=False,
        refusals=(404, 408, 413, 415),
    ),
    Operation("DELETE", "/v1/backups/{backup}", GOVERN_ALL, lambda at: at.backups.end, "endBackup", "A backup is done", {204: None}, refusals=(404,)),
    Operation("GET", "/v1/me", TOKEN, lambda at: at.overview.me, "me", "The roles and namespaces of the token", {200: {JSON: figures.MeAnswer}}),
    Operation(
        "GET", "/v1/overview", FIGURES, lambda at: at.overview.overview, "overview", "Figures of the whole server", {200: {JSON: figures.OverviewAnswer}},
    ),
    Operation(
        "GET", "/v1/upcoming", FIGURES, lambda at: at.overview.upcoming, "upcoming",
        "How many messages are due in each stretch of time, by door",
        {200: {JSON: Upcoming}}, query=figures.UpcomingQuery,
    ),
    Operation(
        "GET", "/v1/slots", FIGURES, lambda at: at.overview.slots, "slots", "How full the slots of the index are", {200: {JSON: figures.SlotsAnswer}},
    ),
    Operation(
        "GET", "/v1/backlogs", SEE_LISTED, lambda at: at.overview.backlogs, "backlogs", "Subscriptions with the most to acknowledge",
        {200: {JSON: figures.BacklogsAnswer}}, query=figures.BacklogsQuery,
    ),
    Operation(
        "GET", "/v1/status", GOVERN_ALL, lambda at: at.status.status, "status", "Figures of the server", {200: {JSON: shapes.StatusAnswer}}
    ),
    Operation("GET", "/healthz", OPEN, lambda at: at.status.health, "healthz", "Whether the process lives", {200: {JSON: _ANY_OBJECT}}),
    Operation(
        "GET", "/readyz", OPEN, lambda at: at.status.ready, "readyz", "Whether messages are accepted and sent, and if not, why",
        {200: {JSON: shapes.ReadyAnswer}, 503: {JSON: shapes.ReadyAnswer}},
    ),
    Operation("GET", "/metrics", GOVERN_ALL, lambda at: at.status.metrics, "metrics", "Prometheus metrics", {200: {PROMETHEUS: {"type": "string"}}}),
    Operation("GET", "/openapi.json", OPEN, lambda at: at.status.openapi, "openapi", "This document", {200: {JSON: _ANY_OBJECT}}),
)  # fmt: skip

HTTP: Final[Mapping[str, Right]] = {f"{one.method} {one.path}": one.right for one in OPERATIONS}
"""The rows of the rights table. The dashboard's own pages hold nothing and are open."""
