"""Policies at three levels: broker, namespace, topic. The nearest one that says anything wins.

Pure: a policy says what is allowed; the engine and its rate limits obey it. Each field is described here once, for people and
with its bounds: the API's document, the command line's flags, the dashboard's form, the reference of the settings and `check` are
made of these descriptions.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Final, Literal, get_args

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from tarry.core.errors import Invalid
from tarry.core.limits import DAY_MS, MAX_DELAY_MS, MAX_TOPICS, SECOND_MS
from tarry.core.quantities import duration_in_words

_MAX_NUMBER: Final = 1 << 53
"""The largest integer that every reader of JSON can read."""

SLOWEST: Final = SECOND_MS / DAY_MS
"""The slowest rate in a second: one a day. Slower ones are no limit that anybody waits for."""

Scope = Literal["broker", "namespace", "topic"]

Level = Callable[[str], str]
"""The level that has set a field of a policy, such as `namespace public/default`; empty where none has."""

BacklogAction = Literal["producer_request_hold", "producer_exception", "consumer_backlog_eviction"]
"""The action on a backlog over its quota, in Pulsar's words: producers are refused, or the oldest entries go."""

FieldKind = Literal["switch", "choice", "duration", "bytes", "count", "rate"]


class PolicyField(Struct, frozen=True, kw_only=True):
    """The description of a field of a policy."""

    kind: FieldKind
    title: str
    about: str
    least: float = 0
    most: float = _MAX_NUMBER
    words: Mapping[int, str] = {}
    """Values that mean something else than their number, with a word for each."""

    def check(self, name: str, value: Any) -> None:
        """Raise `Invalid` for a value outside the bounds."""
        if self.kind in ("switch", "choice"):
            return
        if self.kind == "rate" and value != 0 and not SLOWEST <= value <= self.most:
            raise Invalid(name, "is neither 0 nor between one a day (0.0000116) and a thousand million")
        if not self.least <= value <= self.most:
            raise Invalid(name, f"is not between {self._bounds()}")

    def _bounds(self) -> str:
        if self.kind == "duration" and self.most < _MAX_NUMBER:
            return f"{duration_in_words(int(self.least))} and {duration_in_words(int(self.most))}"
        return f"{self.least:.0f} and {self.most:.0f}{_UNITS.get(self.kind, '')}"

    def schema(self) -> dict[str, Any]:
        """The description as a part of a JSON schema; facts without a keyword there begin with `x-`."""
        schema: dict[str, Any] = {"x-kind": self.kind}
        if self.words:
            schema["x-words"] = {str(value): word for value, word in self.words.items()}
        if self.kind not in ("switch", "choice"):
            schema |= {"minimum": self.least, "maximum": self.most}
        if self.kind == "rate":
            schema["not"] = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": SLOWEST}
        return schema


_UNITS: Final = {"duration": " ms", "bytes": " bytes"}
_UNLIMITED: Final = {0: "no limit"}


def _says(kind: FieldKind, title: str, about: str, **more: Any) -> Meta:
    field = PolicyField(kind=kind, title=title, about=about, **more)
    return Meta(title=title, description=about, extra_json_schema=field.schema(), extra={"field": field})


class Policy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A policy of one level. A field that is None leaves its value to the level above."""

    delayed_delivery: Annotated[bool | None, _says(
        "switch", "Delayed delivery",
        "Whether messages may be delayed; if not, they are due at once.",
    )] = None  # fmt: skip
    tick_ms: Annotated[int | None, _says(
        "duration", "Tick",
        "Due instants are rounded up to a multiple of this.", least=1, most=DAY_MS,
    )] = None  # fmt: skip
    slot_ms: Annotated[int | None, _says(
        "duration", "Finest slot",
        "The finest slot of the index: PIP-26's time-partition granularity.", least=SECOND_MS, most=14 * DAY_MS,
    )] = None  # fmt: skip
    max_delay_ms: Annotated[int | None, _says(
        "duration", "Longest delay",
        "The longest delay; 0 lifts the limit of the levels above.", most=MAX_DELAY_MS, words=_UNLIMITED,
    )] = None  # fmt: skip
    max_pending_per_owner: Annotated[int | None, _says(
        "count", "Pending messages, per owner",
        "Maximum number of one owner's pending messages; 0 lifts the limit of the levels above.", words=_UNLIMITED,
    )] = None  # fmt: skip
    accept_per_second: Annotated[float | None, _says(
        "rate", "Accepted per second, per owner",
        "Messages a second that one owner may schedule; 0 lifts the limit of the levels above.", most=1e9, words=_UNLIMITED,
    )] = None  # fmt: skip
    send_per_second: Annotated[float | None, _says(
        "rate", "Sent per second, per owner",
        "Messages a second of one owner that go out; further ones go out later and are never lost. 0 lifts the limit.", most=1e9, words=_UNLIMITED,
    )] = None  # fmt: skip
    message_ttl_ms: Annotated[int | None, _says(
        "duration", "Time to live of entries",
        "How long after its due instant an entry of a topic waits to be acknowledged; 0 lifts the limit of the levels above.", words=_UNLIMITED,
    )] = None  # fmt: skip
    retention_ms: Annotated[int | None, _says(
        "duration", "Retention of acknowledged entries",
        "How long a topic keeps entries that every subscription has acknowledged; 0 not at all, -1 for ever.", least=-1, words={0: "none", -1: "for ever"},
    )] = None  # fmt: skip
    retention_bytes: Annotated[int | None, _says(
        "bytes", "Retention, bytes",
        "Maximum bytes of acknowledged entries that a topic keeps; -1 has no bound.", least=-1, words={-1: "no limit"},
    )] = None  # fmt: skip
    backlog_bytes: Annotated[int | None, _says(
        "bytes", "Backlog quota, bytes",
        "Maximum bytes that one subscription may have unacknowledged; 0 lifts the limit of the levels above.", words=_UNLIMITED,
    )] = None  # fmt: skip
    backlog_ms: Annotated[int | None, _says(
        "duration", "Backlog quota, age",
        "How long after its due instant the oldest entry of a backlog may lie there; 0 lifts the limit of the levels above.", words=_UNLIMITED,
    )] = None  # fmt: skip
    backlog_action: Annotated[BacklogAction | None, _says(
        "choice", "Over the backlog quota",
        "The action on a backlog over either quota.",
    )] = None  # fmt: skip
    command_per_second: Annotated[float | None, _says(
        "rate", "Commands per second, per owner",
        "Commands a second (cancel, send, restart) on one owner's messages; 0 lifts the limit of the levels above.", most=1e9, words=_UNLIMITED,
    )] = None  # fmt: skip
    deduplication: Annotated[bool | None, _says(
        "switch", "Deduplication",
        "Whether a message that its producer sends again, as its sequence id says, is taken once; for clients of the Pulsar door.",
    )] = None  # fmt: skip
    max_topics: Annotated[int | None, _says(
        "count", "Topics of a namespace",
        "Maximum number of a namespace's topics, partitions included; 0 lifts the limit of the levels above.", words=_UNLIMITED,
    )] = None  # fmt: skip

    def check(self) -> None:
        """Raise `Invalid` for a value that cannot be."""
        for name, value in self.said():
            POLICY_FIELDS[name].check(name, value)

    def said(self) -> Iterable[tuple[str, Any]]:
        """The fields that this level decides, with their values."""
        for name in POLICY_FIELDS:
            value = getattr(self, name)
            if value is not None:
                yield name, value

    def over(self, above: "Policy") -> "Policy":
        """The policy in force where this one is of the nearer level and `above` of the further one."""
        return msgspec.structs.replace(above, **dict(self.said()))

    def changed(self, changes: Struct) -> "Policy":
        """This policy with the fields that a `PolicyChanges` has; None leaves a field to the level above."""
        given = {name: getattr(changes, name) for name in POLICY_FIELDS}
        return msgspec.structs.replace(
            self, **{name: value for name, value in given.items() if value is not UNSET}
        )


POLICY_FIELDS: Final[Mapping[str, PolicyField]] = {
    name: hint.__metadata__[0].extra["field"] for name, hint in Policy.__annotations__.items()
}
"""The description of each field, by its name and in the order in which people see them."""

PolicyChanges: Final = msgspec.defstruct(
    "PolicyChanges",
    [
        (name, Annotated[get_args(hint)[0] | UnsetType, hint.__metadata__[0]], UNSET)
        for name, hint in Policy.__annotations__.items()
    ],
    kw_only=True,
    frozen=True,
    forbid_unknown_fields=True,
    namespace={
        "__doc__": "Changes of a policy (RFC 7396): a field that is null is left to the level above, one that is missing stays."
    },
)


class Effective(Struct, frozen=True, kw_only=True):
    """The policy in force at one place: every field is decided. Its defaults hold where no level says anything."""

    delayed_delivery: bool = True
    tick_ms: int = 1
    slot_ms: int = 300_000
    max_delay_ms: int = 0
    max_pending_per_owner: int = 0
    accept_per_second: float = 0.0
    send_per_second: float = 0.0
    message_ttl_ms: int = 0
    retention_ms: int = 0
    retention_bytes: int = -1
    backlog_bytes: int = 0
    backlog_ms: int = 0
    backlog_action: BacklogAction = "producer_request_hold"
    command_per_second: float = 0.0
    deduplication: bool = False
    max_topics: int = MAX_TOPICS

    @property
    def longest_ms(self) -> int:
        """The longest delay that is taken: the policy's own, or the engine's where it sets none."""
        return self.max_delay_ms or MAX_DELAY_MS

    def round_up(self, due_at_ms: int) -> int:
        """The first tick at or after an instant: never early."""
        return -(-due_at_ms // self.tick_ms) * self.tick_ms


def effective(*levels: Policy | None) -> Effective:
    """Resolve levels given from the furthest (broker) to the nearest (topic)."""
    said: dict[str, Any] = {}
    for level in levels:
        if level is not None:
            said |= level.said()
    return Effective(**said)
