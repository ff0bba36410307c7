"""The judge: believes what clients, consumers and the receiver saw, and nothing that the engine says of itself.

What it holds the engine to is on the first page of the design, and in docs/guarantees: nothing answered is lost,
nothing early, nothing after an answered cancel, every message finalised once, of a group at most one.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, NoReturn

from tarry.core.errors import NotFound
from tarry.core.messages.delivery import Delivered, Delivery, Refused, Retry, Verdict
from tarry.core.messages.message import LED_BY, Message, MessageView, NamedMessage, Scheduled
from tarry.core.messages.repeat import NAME_HEADER, PLANNED_HEADER
from tarry.core.names import DEFAULT_NAMESPACE
from tarry.core.time.times import parse_instant_ms
from tarry.engine.settings import EngineSettings
from tarry.engine.state.engine_state import MARKED_WITHIN_MS
from tarry.engine.topics.entries import Received
from tarry.testing.clock import SimulatedClock
from tests.simulation.model import (
    AUDIT,
    DEAD_LETTERS,
    EAGER,
    FLEETING,
    WHOLE,
    AskedRepeat,
    Model,
    Msg,
    Promise,
    Publication,
    Reader,
    Seen,
    Sub,
    group_of,
    holder_of,
    places_of,
    short,
    token_of,
)


class Violation(AssertionError):
    """A guarantee was broken. It is remembered when it is made: the engine may take it for the error of one consumer."""

    noticed: ClassVar[list["Violation"]] = []

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.noticed.append(self)


def broken(reason: str) -> NoReturn:
    raise Violation(reason)


def _as_asked(msg: Msg, headers: Any) -> bool:
    """Whether a message has the headers that it was asked for with; one that was led may say by whom."""
    led = {LED_BY: headers[LED_BY]} if msg.leader is not None and LED_BY in headers else {}
    return bool(headers == {**msg.message.headers, **led})


class Checker:
    """Takes note of what is seen from outside, and raises `Violation` at once when it cannot be."""

    def __init__(self, model: Model, clock: SimulatedClock, settings: EngineSettings) -> None:
        self.model = model
        self.clock = clock
        self.attempts = settings.attempts
        self.carry_after_ms = settings.carry_after_ms
        self.backoff_ms = settings.backoff_max_ms
        self.carried: dict[str, int] = {}
        """Orders of which a message was to be tried again so late that it got a new version, and when at the latest."""
        self.life = 0
        self.life_step = 0
        self.life_since = 0
        """The clock's reading with which this life began."""
        self.reads_late: Callable[[], bool] = lambda: False
        """Whether due messages wait for bodies from the index for longer than others wait for them."""
        self.under_way: Callable[[], list[str]] = list
        """The tokens of messages that are being sent."""
        self.late_ms = 0
        """The instant up to which due messages of this life were perhaps overtaken because their bodies took so long."""
        self.step: Callable[[], int] = lambda: 0
        """The number of the step that is taken."""
        self.stopped = False
        """The disk has failed: nothing more is shown in this life."""
        self.flying: dict[str, str] = {}
        """Order -> token of what is under way."""
        self.frames = 0
        """How many frames of the ledger were written, or may have been when a life ended."""
        self._highest_ms = self._highest_at = 0

    def new_life(self, step: int) -> None:
        """The server starts anew, at a step of the run."""
        self.life += 1
        self.frames += 1
        self.late_ms = 0
        self.life_step = step
        self.flying.clear()
        self.begin_life()

    def begin_life(self) -> None:
        """The server starts at this instant."""
        self.clock.now_ms()
        self.life_since = len(self.clock.readings) - 1

    def note_late_reads(self) -> None:
        """Excuse messages that are due by now for their order, if bodies come so late that others go ahead."""
        if self.reads_late():
            self.late_ms = self.highest_ms()

    # Time

    def perhaps_sent_ms(self) -> int:
        """The instant up to which due messages may have been handed out already, as far as a server can know (R11)."""
        # Once the clock is behind the last mark after a crash, it was ahead, and nobody knows by how much more than the mark.
        return self.highest_ms() + (MARKED_WITHIN_MS if self.life and self.model.clock_set_back else 0)

    def highest_ms(self) -> int:
        """The highest reading of the clock so far: no watermark is above it."""
        self.clock.now_ms()
        self._highest_ms = max(self._highest_ms, *self.clock.readings[self._highest_at :])
        self._highest_at = len(self.clock.readings) - 1
        return self._highest_ms

    def reached(self, due_at_ms: int, since: int, until: int | None = None) -> bool:
        """Whether the engine has read the clock at or past an instant, since a reading and until another."""
        readings = self.clock.readings[since : None if until is None else until + 1]
        return any(at_ms >= due_at_ms for at_ms in readings)

    def _has_moved(self, msg: Msg) -> bool:
        """Whether nobody knows when it is due: its delay counts from its leader's sending, by a clock that was set back."""
        return msg.leader is not None and self.model.clock_set_back

    def _check_not_early(self, msg: Msg, since: int, what: str) -> None:
        if not self._has_moved(msg) and not any(
            self.reached(promise.due_at_ms, max(promise.since, since)) for promise in msg.promises
        ):
            broken(
                f"{msg.token} {what} early: due {self._dues(msg)}, the clock is at {self.clock.readings[-1]}"
            )

    def _dues(self, msg: Msg) -> str:
        return " or ".join(str(promise.due_at_ms) for promise in msg.promises)

    # Answers

    def scheduled(self, msg: Msg, answer: Scheduled) -> None:
        """A schedule was answered."""
        if msg.accepted is not None:
            if msg.accepted.id != answer.id:
                broken(f"{msg.token}: a repeated request got another id")
            if msg.accepted.due_at_ms != answer.due_at_ms:
                broken(f"{msg.token}: a repeated request got another due instant")
            return
        if (answer.due_at_ms is None) == (msg.timed and msg.leader is None):
            broken(f"{msg.token}: the answer's due instant is {answer.due_at_ms}")
        if answer.due_at_ms is not None and not msg.eager:
            if answer.due_at_ms < min(promise.due_at_ms for promise in msg.promises):
                broken(f"{msg.token}: answered as due at {answer.due_at_ms}, asked for {self._dues(msg)}")
            # Of several requests with one idempotency key, the answer says which was the first.
            msg.promises = [Promise(answer.due_at_ms, min(promise.since for promise in msg.promises))]
        msg.accepted, msg.accepted_step = answer, self.step()

    def led(self, msg: Msg) -> None:
        """A command was refused because its group waits for the message that leads it."""
        if msg.leader is None or msg.leader.ended:
            broken(f"{msg.token} is said to wait for the one that leads its group")

    def is_over(self, msg: Msg) -> bool:
        """Whether a message has ended for certain."""
        return (
            msg.ended or msg.cancelled or msg.superseded or bool(msg.told) or msg.token in self.model.places
        )

    def kept(self, msg: Msg, id_: str, before: list[Msg], rivals: list[Msg]) -> None:
        """A schedule was answered with the message that has its name: one of those that may wait."""
        known = next((one for one in before if one.accepted is not None and one.accepted.id == id_), None)
        if known is None and not any(one.maybe for one in rivals):
            broken(f"{msg.token}: another message is kept that nobody gave this name")
        if known is not None and known not in rivals:
            broken(f"{msg.token}: {known.token} is kept, and had ended")

    def took_name(self, msg: Msg, before: list[Msg], rivals: list[Msg], *, replaced: bool) -> None:
        """A message was accepted under a name: no earlier one of it waits, or ever goes out again."""
        takes = isinstance(msg.message, NamedMessage) and msg.message.on_conflict == "replace"
        # One that another replace may have ended, of which nobody heard, does not wait for certain.
        sure = [one for one in rivals if one.replacers <= takes and self.waits_surely(one)]
        if not replaced and sure:
            broken(f"{msg.token} is accepted while {sure[0].token} waits, which has its name")
        if len(sure) > 1:
            broken(f"{sure[0].token} and {sure[1].token} of one name both waited")
        if replaced and not rivals:
            broken(f"{msg.token} is said to replace another, and there is none")
        if replaced and len(rivals) == 1:
            self.cancelled(rivals[0])
        msg.replaced_one = replaced
        for one in before:
            one.superseded = not one.retries
            # One that was retried has its name only if nobody has taken it meanwhile.
            if not one.retries and any(one.token == token for token in self.under_way()):
                broken(f"{msg.token} is accepted while {one.token} is being sent, which has its name")

    def _supersede(self, msg: Msg) -> None:
        """A message is seen: if it has a name it was accepted, and no earlier one of that name goes out any more."""
        if msg.place is not None:
            for one in self.model.named_before(msg):
                one.superseded = not one.retries

    def _check_replaced(self, views: dict[str, MessageView]) -> None:
        """Each message that was replaced has one in its place: one that was answered so, or may have been accepted unanswered."""
        gone = Counter(
            self.model.messages[token].place
            for token, view in views.items()
            if (view.reason or "").startswith("replaced by")
        )
        there = Counter(
            msg.place
            for msg in self.model.messages.values()
            if msg.replaced_one or (msg.maybe and (self._was_seen(msg) or msg.message.ttl_ms or msg.eager))
        )
        for place, count in gone.items():
            if count > there[place]:
                broken(f"{count} messages named {place} were replaced, and {there[place]} are in their place")

    def _was_seen(self, msg: Msg) -> bool:
        return bool(msg.launches) or msg.token in self.model.places or msg.message.destination == FLEETING

    def waits_surely(self, msg: Msg) -> bool:
        """Whether a message waits for certain, if nothing but a replace has ended it."""
        unclear = (
            msg.busy or msg.cancel_maybe or msg.doomed or msg.eager or msg.message.destination == FLEETING
        )
        unclear |= self.is_over(msg) or self.model.clock_set_back or self.model.damaged
        now_ms = self.highest_ms()
        return (
            msg.accepted is not None and not unclear and all(one.due_at_ms > now_ms for one in msg.promises)
        )

    def cancelled(self, msg: Msg) -> None:
        """A cancel was answered."""
        msg.cancelled = True
        if msg.token in self.model.places:
            broken(f"{msg.token} was cancelled, but is in a topic")
        if self.life in msg.arrivals or (msg.arrivals and msg.lost and not self.model.clock_set_back):
            broken(f"{msg.token} was cancelled, but had arrived")
        if msg.told not in ("", "cancelled"):
            broken(f"{msg.token} was cancelled after it was told to be {msg.told}")

    def told(self, msg: Msg, state: str) -> None:
        """The engine said how a message ended."""
        if state == "failed" and msg.retrying:
            # It may be accepted once more at any moment.
            return
        if msg.told not in ("", state):
            broken(f"{msg.token} is said to be {state}, and was said to be {msg.told}")
        if msg.cancelled and state != "cancelled":
            broken(f"{msg.token} is said to be {state}, and was cancelled")
        msg.told = state
        msg.ended = True

    def shown(self, msg: Msg, view: MessageView) -> None:
        """A message was looked at."""
        if msg.accepted is None or view.id != msg.accepted.id:
            broken(f"{msg.token}: looking it up gave another message")
        message = msg.message
        if view.state in ("scheduled", "sending"):
            if msg.ended or msg.cancelled:
                broken(f"{msg.token} is {view.state}, but had ended")
            if view.payload != message.payload or not _as_asked(msg, view.headers):
                broken(f"{msg.token} is shown with another body")
        else:
            self.told(msg, view.state)
        if (view.owner, view.key, view.group) != (message.owner, message.key, message.group):
            broken(f"{msg.token} is shown as another message: {view}")

    def listed(self, views: list[MessageView]) -> None:
        """All that waits was listed: what is known to wait must be there, and what has ended must not."""
        ids = {view.id for view in views}
        if len(ids) != len(views):
            broken("a message is listed twice")
        now_ms = self.clock.readings[-1]
        for msg in self.model.accepted():
            assert msg.accepted is not None
            here = msg.accepted.id in ids
            if here and (msg.ended or msg.cancelled):
                broken(f"{msg.token} is listed as waiting, but has ended")
            sure = not (
                msg.busy
                or msg.ended
                or msg.cancelled
                or msg.maybe_cancelled
                or msg.message.group
                or msg.eager
                or msg.batch
            )
            if sure and not here and all(promise.due_at_ms > now_ms for promise in msg.promises):
                if not self.model.clock_set_back and not self.model.damaged:
                    broken(f"{msg.token} waits, but is not listed")

        for view in views:
            publication = self.model.publications.get(str((view.headers or {}).get("token")))
            if publication is not None and publication.topic != FLEETING:
                self._same(publication, view)
                if publication.recalled:
                    broken(f"{publication.token} is listed as waiting, but was cancelled")
        for publication in self.model.publications.values():
            due_at_ms = publication.deliver_at_ms
            if publication.id is None or due_at_ms is None or publication.topic in (EAGER, FLEETING):
                continue
            place = publication.topic, publication.entry_id
            sure = not publication.busy and not publication.dues and place not in self.model.recalled
            sure &= not self._needed_by_nobody(publication)
            if sure and publication.id not in ids and not self.reached(due_at_ms, publication.since):
                if not self.model.clock_set_back and not self.model.damaged:
                    broken(f"{publication.token} waits, but is not listed")

    # Delayed entries as messages

    def _same(self, publication: Publication, view: MessageView) -> None:
        """An entry that waits looks as it was published, and keeps its id."""
        if publication.id is None:
            publication.id = view.id
        if view.id != publication.id:
            broken(f"{publication.token} had another id before")
        shown = short(view.destination), view.payload, view.headers, view.key
        if shown != (publication.topic, publication.payload, publication.headers, publication.key):
            broken(f"{publication.token} is shown as another message: {view}")

    def commanded(self, publication: Publication, answer: Any) -> None:
        """A command on an entry was answered."""
        publication.commanded = True
        if publication.id is not None and answer.id != publication.id:
            broken(f"{publication.token}: a command was answered with another id")

    def inquired(self, publication: Publication, view: MessageView) -> None:
        """An entry was looked at by its id."""
        assert publication.deliver_at_ms is not None
        place = publication.topic, publication.entry_id
        if view.state == "scheduled":
            self._same(publication, view)
        if publication.recalled and view.state != "cancelled":
            broken(f"{publication.token} is {view.state}, but was cancelled")
        if view.state == "cancelled" and place not in self.model.recalled:
            broken(f"{publication.token} was cancelled by nobody")
        if view.state == "sent" and publication.topic != EAGER:
            dues = [Promise(publication.deliver_at_ms, publication.since), *publication.dues]
            if not any(self.reached(due.due_at_ms, due.since) for due in dues):
                broken(f"{publication.token} is said to be sent before {publication.deliver_at_ms}")

    def not_found(self, publication: Publication, error: BaseException) -> None:
        """An entry is not found by its id: its first record is gone, and it has no row."""
        assert publication.deliver_at_ms is not None
        sent = self.reached(publication.deliver_at_ms, publication.since) and not publication.commanded
        gone = (sent or self._needed_by_nobody(publication)) and not publication.recalled
        if not isinstance(error, NotFound) or not (gone or self.model.damaged):
            broken(f"{publication.token} is not found: {error!r}")

    def _needed_by_nobody(self, publication: Publication) -> bool:
        """Whether the subscription that reads all of a topic has acknowledged an entry, perhaps while it waited."""
        sub = self.model.subs.get((publication.topic, AUDIT))
        if sub is None or publication.entry_id is None:
            return True
        below = max(sub.acked_below, sub.excused_below)
        return publication.entry_id < below or publication.entry_id in sub.acked | sub.excused

    # The receiver

    def launched(self, delivery: Delivery) -> Msg:
        """The engine tells an outlet to send."""
        msg = self.recognise(delivery)
        msg.launches += 1
        self._supersede(msg)
        if self.frames == msg.first_frame:
            broken(f"{msg.token} goes out before a record of it can be on disk")
        if msg.cancelled or msg.silent:
            broken(f"{msg.token} goes out after its cancel was answered")
        if msg.superseded:
            broken(f"{msg.token} goes out after another message of its name was accepted")
        if msg.ended or (msg.verdict_life == self.life and not msg.retrying):
            broken(f"{msg.token} goes out again after its end")
        if self.model.held_since(places_of(msg.message)) is not None:
            broken(f"{msg.token} goes out from a place that is paused")
        if msg.message.group is None:
            self._check_not_early(msg, len(self.clock.readings) - 1, "goes out")
        else:
            # Between its claim and its launch the clock may be set back.
            self._check_not_early(msg, self.life_since, "goes out")
        self._check_group(msg)
        if msg.order is not None:
            if msg.order in self.flying:
                broken(f"{msg.token} goes out while {self.flying[msg.order]} of the same key is under way")
            self.flying[msg.order] = msg.token
            self._check_order(msg)
        return msg

    def recognise(self, delivery: Delivery) -> Msg:
        """The message that goes out: one that may have been accepted, as it was asked for."""
        msg = self._message(delivery.headers, delivery.id)
        if msg is None or not (msg.accepted or msg.maybe):
            broken(f"an unknown message goes out: {delivery.headers}")
        message = msg.message
        expected = (message.destination, message.payload, True, message.key, message.owner)
        if (
            delivery.destination,
            delivery.payload,
            _as_asked(msg, delivery.headers),
            delivery.key,
            delivery.owner,
        ) != expected:
            broken(f"{msg.token} goes out changed: {delivery}")
        if msg.accepted is not None and delivery.id != msg.accepted.id:
            broken(f"{msg.token} goes out with another id")
        return msg

    def _message(self, headers: Mapping[str, str], id_: str | None) -> Msg | None:
        """The message that is seen: one that was asked for, or an occurrence of a repeat, which is known from here on."""
        msg = self.model.messages.get(token_of(headers))
        asked = self.model.repeats.get(headers.get("token", ""))
        if msg is not None or asked is None or id_ is None:
            return msg
        return self._occurrence(asked, headers, id_)

    def _occurrence(self, asked: AskedRepeat, headers: Mapping[str, str], id_: str) -> Msg:
        """An occurrence is seen for the first time."""
        token, repeat = token_of(headers), asked.repeat
        planned_ms = parse_instant_ms(headers[PLANNED_HEADER])
        at, off_ms = divmod(planned_ms - asked.first_ms, repeat.every_ms)
        if at < 0 or off_ms or (repeat.missed == "all" and at >= (repeat.count or 0)):
            broken(f"{token} goes out, and is no occurrence of a repeat that began at {asked.first_ms}")
        if asked.refused:
            broken(f"{token} goes out, of a repeat that was refused")
        if asked.none_after_ms is not None and planned_ms > asked.none_after_ms:
            broken(f"{token} goes out, which was not due when its repeat was paused or ended")
        if headers.get(NAME_HEADER) != asked.name:
            broken(f"{token} goes out as an occurrence of {headers.get(NAME_HEADER)}")
        made = sum(one.startswith(f"{repeat.headers['token']}@") for one in self.model.messages)
        if made >= (repeat.count or 0):
            broken(f"{token} goes out, and its repeat had {made} occurrences before")
        message = Message(
            destination=repeat.destination, payload=repeat.payload, headers=dict(headers), key=repeat.key,
            owner=repeat.owner, due_at_ms=planned_ms,
        )  # fmt: skip
        msg = Msg(
            token, message, [Promise(planned_ms, 0)], 0, asks=1, first_frame=-1, delays=[0], touched=True
        )
        msg.accepted = Scheduled(id_, planned_ms)
        self.model.messages[token] = msg
        return msg

    def _check_order(self, msg: Msg) -> None:
        """Check order: no message of this key, owner and namespace that was accepted and fires before this one may still wait."""
        if msg.touched or not msg.accepted or msg.accepted.due_at_ms is None or self.model.limited:
            return
        if msg.order is None or msg.batch or self._is_carried(msg.order):
            # Messages of a batch take their places when its files are read, in lanes of their own.
            return
        if self.model.ever_paused.intersection(places_of(msg.message)):
            return
        if self.model.damaged:
            # A message whose record cannot be read has failed, and those behind it go on.
            return
        # The turn in which others go ahead is the one that launches them.
        self.note_late_reads()
        fires_ms = max(msg.accepted.due_at_ms, msg.floor_ms)
        for other in self._of_order(msg.order):
            if (
                other is not msg
                and holder_of(other.message) == holder_of(msg.message)
                and not other.touched
                and not other.batch
                and other.born < msg.born
                and self.late_ms < self._fires_by(other) <= fires_ms
                and not (
                    other.ended or other.verdict_life >= 0 or other.message.ttl_ms or other.message.group
                )
                and not (other.cancelled or other.maybe_cancelled)
                # A restart does not remember which chains were carried to a later instant.
                and other.born >= self.life_step
            ):
                broken(f"{msg.token} overtakes {other.token} of the same key")

    def _of_order(self, order: str) -> list[Msg]:
        """The messages of one order that are accepted for certain and have a due instant."""
        return [
            msg
            for msg in self.model.messages.values()
            if msg.order == order and msg.accepted is not None and msg.accepted.due_at_ms is not None
        ]

    def _fires_by(self, msg: Msg) -> int:
        """The latest instant that a message can fire at: past due it is its acceptance, or the watermark (R4)."""
        assert msg.accepted is not None
        assert msg.accepted.due_at_ms is not None
        tick_ms = self.model.tick_ms
        return max(-(-msg.accepted.due_at_ms // tick_ms) * tick_ms, msg.ceiling_ms)

    def _is_carried(self, order: str) -> bool:
        """Whether messages of an order wait that were carried to a later attempt, or stay behind those (R9)."""
        carried_ms = self.carried.get(order)
        if carried_ms is None:
            return False
        for msg in self._of_order(order):
            assert msg.accepted is not None
            assert msg.accepted.due_at_ms is not None
            over = msg.ended or msg.cancelled or msg.verdict_life == self.life
            if not over and max(msg.accepted.due_at_ms, msg.floor_ms) <= carried_ms:
                return True
        del self.carried[order]
        return False

    def arrived(self, msg: Msg, life: int | None = None) -> None:
        """The receiver got it, by an attempt of this life or of another."""
        msg.arrivals.append(self.life if life is None else life)

    def answered(self, msg: Msg, attempt: int, verdict: Verdict) -> None:
        """The outlet tells the engine what came of it."""
        if msg.order is not None:
            self.flying.pop(msg.order, None)
        if isinstance(verdict, Refused) or (isinstance(verdict, Retry) and attempt >= self.attempts):
            msg.refused = True
            # A bulk command that retries it may come upon it now, or has passed it.
            msg.verdict_life = -1 if msg.retrying else self.life
        if isinstance(verdict, Delivered):
            msg.verdict_life = self.life
        if isinstance(verdict, Retry):
            # An attempt that certainly did not arrive settles what a crash had left open (R11).
            msg.unsure |= verdict.uncertain
            msg.lost &= msg.unsure
        if isinstance(verdict, Retry) and msg.order is not None:
            # While a restart is not durable, the version that was tried is the earlier one.
            due_at_ms = min(promise.due_at_ms for promise in msg.promises)
            again_ms = self.clock.now_ms() + max(1, verdict.after_ms or self.backoff_ms)
            if again_ms - due_at_ms >= self.carry_after_ms:
                self.carried[msg.order] = max(again_ms, self.carried.get(msg.order, 0))

    def all_durable(self) -> None:
        """Everything that the engine enqueued in this life is durable, ends included."""
        for msg in self.model.messages.values():
            if msg.verdict_life == self.life and not msg.retrying:
                msg.ended = True

    def _check_group(self, msg: Msg) -> None:
        if msg.message.group is None:
            return
        if msg.leader is not None and not msg.leader.arrivals:
            broken(f"{msg.token} goes out before {msg.leader.token}, which leads its group")
        for other in self.model.messages.values():
            if (
                other is not msg
                and group_of(other.message) == group_of(msg.message)
                and (other.launches or other.token in self.model.places)
            ):
                broken(f"{msg.token} and {other.token} of one group were both sent")

    # Consumers

    def received(self, sub: Sub, reader: Reader, entries: Iterable[Received]) -> None:
        """A consumer is given entries."""
        for entry in entries:
            if reader.closed:
                broken(f"{sub.name} gives to a consumer that is gone")
            if self.stopped:
                broken(f"{sub.topic}/{sub.name} gives entry {entry.entry_id} after the disk has failed")
            reader.permits -= 1
            if reader.permits < 0:
                broken(f"{sub.name} gives more than it was permitted")
            self._note(sub.topic, entry)
            if (sub.topic, entry.entry_id) in self.model.withdrawn:
                broken(f"{entry.headers.get('token')} was retried, and its dead letter comes to {sub.name}")
            self._check_delivery(sub, reader, entry)
            sub.got[entry.entry_id] = sub.got.get(entry.entry_id, 0) + 1
            reader.held[entry.entry_id] = entry.key

    def received_late(self, sub: Sub, entries: Iterable[Received]) -> None:
        """A consumer is given entries by a server that was superseded: they are in their topics all the same."""
        for entry in entries:
            if sub.topic != FLEETING:
                self._note(sub.topic, entry)

    def _note(self, topic: str, entry: Received) -> None:
        """Every entry looks the same to everybody, and holds what somebody sent or published."""
        token = token_of(entry.headers)
        seen = Seen(token, entry.payload, entry.headers, entry.key, entry.published_at_ms, entry.message_id)
        known = self.model.entries.setdefault(topic, {}).setdefault(entry.entry_id, seen)
        if known is not seen:
            if known != seen:
                broken(f"entry {entry.entry_id} of {topic} was {known} and is {seen}")
            return
        if "tarry-origin-topic" in entry.headers or topic == DEAD_LETTERS:
            self.model.letters.setdefault(token, []).append((topic, entry.entry_id))
            failed = self.model.messages.get(token)
            if failed is not None and failed.retries and topic == DEAD_LETTERS:
                # It may have been taken back before anybody had read it.
                self.model.recalled.add((topic, entry.entry_id))
            return
        places = self.model.places.setdefault(token, [])
        places.append((topic, entry.entry_id))
        if len(places) > 1 and topic != FLEETING:
            broken(f"{token} is in topics twice: {places}")
        if token in self.model.deleted:
            broken(f"{token} is in {topic} again, which was deleted with it")
        msg = self._message(entry.headers, entry.message_id)
        if msg is not None:
            self._check_fired(msg, topic, entry)
        elif token in self.model.publications:
            self._check_published(token, topic, entry)
        else:
            broken(f"entry {entry.entry_id} of {topic} was never sent: {entry}")

    def _check_fired(self, msg: Msg, topic: str, entry: Received) -> None:
        message = msg.message
        self._supersede(msg)
        if not (msg.accepted or msg.maybe):
            broken(f"{msg.token} was refused, but is in {topic}")
        if (topic, entry.payload, _as_asked(msg, entry.headers), entry.key) != (
            short(message.destination), message.payload, True, message.key,
        ):  # fmt: skip
            broken(f"{msg.token} is changed in {topic}: {entry}")
        if msg.accepted is not None and entry.message_id != msg.accepted.id:
            broken(f"{msg.token} is in {topic} with another id")
        if msg.cancelled:
            broken(f"{msg.token} is in {topic} after its cancel was answered")
        if msg.told not in ("", "sent"):
            broken(f"{msg.token} is in {topic}, and is said to be {msg.told}")
        at_ms = entry.published_at_ms
        since = min(promise.since for promise in msg.promises)
        if at_ms not in self.clock.readings[since:]:
            broken(f"{msg.token} was dispatched at {at_ms}, which the clock has not shown since")
        if (
            topic != EAGER
            and not self._has_moved(msg)
            and not any(promise.due_at_ms <= at_ms for promise in msg.promises)
        ):
            broken(f"{msg.token} is in {topic} early: due {self._dues(msg)}, dispatched at {at_ms}")
        held = self.model.held_since(places_of(message))
        if held is not None and at_ms not in self.clock.readings[: held + 1]:
            broken(f"{msg.token} was dispatched at {at_ms} to {topic}, from a place that was paused by then")
        self._check_group(msg)

    def _check_published(self, token: str, topic: str, entry: Received) -> None:
        publication = self.model.publications[token]
        if not (publication.accepted or publication.maybe):
            broken(f"{token} was refused, but is in {topic}")
        expected = (publication.topic, publication.payload, publication.headers, publication.key)
        if (topic, entry.payload, entry.headers, entry.key) != expected:
            broken(f"{token} is changed in {topic}: {entry}")
        if publication.entry_id is not None and publication.entry_id != entry.entry_id:
            broken(f"{token} was answered as {publication.entry_id} and is {entry.entry_id}")

    def _check_delivery(self, sub: Sub, reader: Reader, entry: Received) -> None:
        entry_id = entry.entry_id
        if entry_id in sub.acked or entry_id < sub.acked_below:
            broken(f"entry {entry_id} comes again to {sub.topic}/{sub.name}, which has acknowledged it")
        most, least = sub.parts.get(entry_id, (WHOLE, WHOLE))
        left = entry.left[0] if entry.left else WHOLE
        if left & ~most or least & ~left:
            broken(
                f"of entry {entry_id} of {sub.topic}/{sub.name} {left:b} is said to be left, not {least:b} to {most:b}"
            )
        for other in sub.consumers:
            if entry_id in other.held:
                broken(f"entry {entry_id} comes to {reader.name} of {sub.name} while {other.name} holds it")
        publication = self.model.publications.get(entry.headers.get("token", ""))
        delayed = publication is not None and publication.deliver_at_ms is not None
        if publication is not None and publication.recalled and sub.topic == publication.topic:
            broken(f"{publication.token} comes to {sub.name} after its cancel was answered")
        if sub.loose:
            return
        if sub.in_order:
            self._check_in_order(sub, entry_id)
        elif (
            publication is not None
            and publication.deliver_at_ms is not None
            and sub.topic == publication.topic != EAGER
        ):
            dues = [Promise(publication.deliver_at_ms, publication.since), *publication.dues]
            if not any(self.reached(due.due_at_ms, due.since) for due in dues):
                broken(f"entry {entry_id} comes to {sub.name} before {publication.deliver_at_ms}")
            held = self.model.held_since([("topic", DEFAULT_NAMESPACE, sub.topic)])
            # What is published without a delay, or with one that is over, is not held.
            upto = 0 if held is None else held
            if held is not None and not any(
                self.reached(due.due_at_ms, due.since, max(due.since, upto)) for due in dues
            ):
                broken(f"entry {entry_id} comes to {sub.name} while its topic is paused")
        if sub.type == "key_shared" and entry.key is not None:
            for other in sub.consumers:
                if other is not reader and entry.key in other.held.values():
                    broken(f"key {entry.key} of {sub.name} is with two consumers at once")
            if not delayed and entry_id not in sub.got:
                if entry_id < sub.last_of_key.get(entry.key, -1):
                    broken(f"entry {entry_id} of {sub.name} comes after a later one of its key")
                sub.last_of_key[entry.key] = entry_id

    def _check_in_order(self, sub: Sub, entry_id: int) -> None:
        if entry_id in sub.got or sub.topic in (EAGER, FLEETING) or self.model.damaged:
            return
        if entry_id < sub.last_fresh:
            broken(f"entry {entry_id} comes to {sub.name} after {sub.last_fresh}")
        if sub.first is None:
            # A reader begins somewhere near the end.
            sub.first = entry_id
        else:
            for missed in range(max(sub.last_fresh + 1, sub.first, sub.excused_below), entry_id):
                excused = missed in sub.excused or missed in sub.got
                if not excused and not self.model.is_taken_back(sub.topic, missed):
                    broken(f"{sub.topic}/{sub.name} gets entry {entry_id} without {missed}")
        sub.last_fresh = entry_id

    # The end

    def check_ends(self, views: dict[str, MessageView]) -> None:
        """Everything has had the time it needs: every accepted message has ended, and how it ended is what was seen."""
        for msg in self.model.accepted():
            if msg.token not in views:
                self._check_gone(msg)
                continue
            view = views[msg.token]
            if view.state in ("scheduled", "sending"):
                broken(f"{msg.token} never ended: it is {view.state}")
            self._check_end(msg, view)
        self._check_replaced(views)
        for publication in self.model.publications.values():
            if publication.ttl_ms is not None or publication.topic == FLEETING:
                continue
            if (publication.topic, publication.entry_id) in self.model.recalled:
                continue
            if publication.accepted and publication.token not in self.model.places:
                broken(f"{publication.token} was published and is nowhere")

    def _check_gone(self, msg: Msg) -> None:
        """Check a message that is not found: one that ended with its whole batch is not remembered, and must not have been sent."""
        if not msg.doomed:
            broken(f"{msg.token} cannot be found any more")
        sent = msg.ended or msg.verdict_life == self.life
        # An end that a crash took away is not known to whoever cancels the batch after it by an earlier clock.
        sent |= msg.verdict_life >= 0 and not self.model.clock_set_back
        if msg.token in self.model.places or sent:
            broken(f"{msg.token} was sent, but cannot be found any more")

    def _check_end(self, msg: Msg, view: MessageView) -> None:
        in_topic = msg.token in self.model.places
        if in_topic and view.state != "sent":
            broken(f"{msg.token} is {view.state}, but was sent")
        if msg.cancelled and view.state != "cancelled":
            broken(f"{msg.token} is {view.state}, but was cancelled")
        match view.state:
            case "sent":
                if not (msg.arrivals if msg.foreign else in_topic) and msg.message.destination != FLEETING:
                    broken(f"{msg.token} is said to be sent, but nobody has it")
            case "cancelled":
                if not (msg.cancelled or msg.maybe_cancelled or msg.message.group):
                    broken(f"{msg.token} was cancelled by nobody: {view.reason}")
                if msg.message.group and not msg.cancelled and not msg.maybe_cancelled:
                    self._check_discarded(msg, view)
            case "failed":
                if not (msg.refused or msg.message.ttl_ms or self.model.damaged):
                    broken(f"{msg.token} failed for no reason: {view.reason}")
                if msg.refused and not msg.message.ttl_ms:
                    letters = self.model.letters.get(msg.token, [])
                    if len(letters) > 1 + msg.retries:
                        broken(f"{msg.token} has {len(letters)} dead letters")

    def _check_discarded(self, msg: Msg, view: MessageView) -> None:
        """A member of a group ends by itself only because another one was sent, no timed one is left, or its leader failed."""
        leader = msg.leader
        if leader is not None and (
            leader.refused
            or leader.retries
            or leader.cancelled
            or leader.maybe_cancelled
            or leader.message.ttl_ms
        ):
            return
        group = [
            other
            for other in self.model.messages.values()
            if other is not msg and group_of(other.message) == group_of(msg.message)
        ]
        # A claim ends the others even if the one that it was for fails in the end.
        sent = any(
            other.foreign or other.token in self.model.places or other.message.destination == FLEETING
            for other in group
        )
        if not sent and msg.timed:
            broken(f"{msg.token} was discarded, but none of its group was sent: {view.reason}")

    def check_entries(self) -> None:
        """Every subscription got, in this life, every entry that it has not acknowledged."""
        for sub in self.model.subs.values():
            if not sub.accepted or sub.first is None or sub.topic in (EAGER, FLEETING):
                continue
            for entry_id, seen in self.model.entries.get(sub.topic, {}).items():
                if entry_id < max(sub.first, sub.excused_below) or entry_id in sub.got:
                    continue
                if entry_id in sub.letters:
                    self._check_letter(sub, entry_id, seen)
                elif entry_id not in sub.excused and (sub.topic, entry_id) not in self.model.recalled:
                    broken(f"entry {entry_id} ({seen.token}) never came to {sub.topic}/{sub.name}")
        for topic, entries in self.model.entries.items():
            for entry_id in range(max(entries, default=-1) + 1):
                if topic in (EAGER, FLEETING) or entry_id in entries:
                    continue
                if not self.model.is_taken_back(topic, entry_id):
                    broken(f"{topic} has holes: {sorted(entries)}")

    def _check_letter(self, sub: Sub, entry_id: int, seen: Seen) -> None:
        for topic, letter in self.model.letters.get(seen.token, []):
            headers = self.model.entries[topic][letter].headers
            if (headers.get("tarry-origin-entry"), short(headers.get("tarry-origin-topic", ""))) == (
                str(entry_id), sub.topic,
            ):  # fmt: skip
                return
        broken(f"entry {entry_id} of {sub.topic} came too often to {sub.name}, and is not a dead letter")
