"""Producers: threads that schedule, publish and command in every way that the API offers, and write down the answers.

Each one acts only on messages of its own, one request at a time, so that the order of what it asked is the
order in its books. What broke off without an answer is repeated only where that cannot do anything twice.
"""

import http.client
import json
import random
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from tarry.client import Client, Unreachable
from tarry.client.call import topic_path
from tarry.core.errors import Conflict, RateLimited, TarryError, Unavailable
from tests.crash.books import FAR_MS, Books, Command, Message, Publication, new_label, now_ms, payload_of

TOPICS: Final = ("persistent://public/default/crash-a", "persistent://public/default/crash-b")
AWAY_S: Final = 0.05
LONGEST_MS: Final = 4_000
"""The longest delay of what is not far."""


class Away(Exception):
    """The server could not be reached at all: nothing was asked."""


class Producer(threading.Thread):
    """One producer."""

    pause_s = 0.01
    """After each thing that it does."""
    refused_may_be_done = False
    """Whether a request that was refused for the moment (503) may have been carried out all the same."""

    def __init__(
        self,
        url: str,
        hook: str,
        books: Books,
        seed: int,
        stop: threading.Event,
        longest_ms: int = LONGEST_MS,
    ) -> None:
        super().__init__(name=f"producer-{seed}")
        self._client = Client(url, retry_for_s=0, timeout_s=20)
        self._address = url.removeprefix("http://")
        self._hook = hook
        self._books = books
        self._random = random.Random(seed)
        self._stopping = stop
        self._longest_ms = longest_ms
        self._known: deque[Message] = deque(maxlen=400)
        """Messages that commands may be for."""
        self._sequence = 0
        self.failure: Exception | None = None

    def run(self) -> None:
        """Produce until told to stop."""
        actions = self.actions()
        try:
            while not self._stopping.is_set():
                try:
                    self._random.choice(actions)()
                    self._stopping.wait(self.pause_s)
                except Away:
                    self._stopping.wait(AWAY_S)
        except Exception as error:  # noqa: BLE001 - whoever joins this thread looks at it
            self.failure = error
        finally:
            self.close()

    def actions(self) -> list[Callable[[], None]]:
        """The producer's actions, one at a time and as often as they are listed."""
        return [
            self._single, self._single, self._keyed, self._webhook, self._webhook, self._lines, self._arrow,
            self._publish, self._publish_again, self._group, self._command, self._command, self._command,
        ]  # fmt: skip

    def close(self) -> None:
        """Close its connections."""
        self._client.close()

    # Schedules

    def _when(self) -> tuple[dict[str, int], int, bool]:
        """A time for a message: how it is asked for, the earliest due instant, and whether it is far."""
        draw = self._random
        asked_ms = now_ms()
        if draw.random() < 0.1:
            return {"delay_ms": FAR_MS}, asked_ms + FAR_MS, True
        delay_ms = draw.choice((1, 5, 50, draw.randrange(LONGEST_MS), draw.randrange(self._longest_ms)))
        if draw.random() < 0.5:
            return {"delay_ms": delay_ms}, asked_ms + delay_ms, False
        return {"due_at_ms": asked_ms + delay_ms}, asked_ms + delay_ms, False

    def _single(self) -> None:
        when, floor_ms, far = self._when()
        message = Message(new_label(), "topic", self._topic(), floor_ms, far=far)
        self._schedule(message, when)

    def _webhook(self) -> None:
        when, floor_ms, far = self._when()
        message = Message(new_label(), "webhook", self._hook, floor_ms, far=far)
        self._schedule(message, when)

    def _keyed(self) -> None:
        """One that is repeated under its idempotency key until it is answered."""
        when, floor_ms, far = self._when()
        message = Message(new_label(), "topic", self._topic(), floor_ms, far=far)
        while message.id is None and not self._stopping.is_set():
            try:
                self._schedule(message, when, key=f"key-{message.label}")
            except Away:
                self._stopping.wait(AWAY_S)
        first = message.id
        if first is not None and self._random.random() < 0.3:
            self._schedule(message, when, key=f"key-{message.label}")
            if message.id != first:
                self._complain(f"{message.label}: one idempotency key, but the ids {first} and {message.id}")

    def _group(self) -> None:
        """Three of which one may go out; the third only by command."""
        group = f"group-{new_label()}"
        destination = self._hook if self._random.random() < 0.3 else self._topic()
        way: Any = "webhook" if destination == self._hook else "topic"
        for place in range(self._random.choice((2, 3))):
            when: dict[str, int] = {}
            floor_ms = now_ms() + FAR_MS
            if place < 2:
                delay_ms = 500 + self._random.randrange(1_500)
                when, floor_ms = {"delay_ms": delay_ms}, now_ms() + delay_ms
            message = Message(new_label(), way, destination, floor_ms, group=group, far=not when)
            self._schedule(message, when)

    def _schedule(self, message: Message, when: dict[str, int], key: str | None = None) -> None:
        try:
            answer = self._client.schedule(
                message.destination, payload_of(message.label), group=message.group, owner=self.name,
                headers={"x-label": message.label}, idempotency_key=key,
                delay_ms=when.get("delay_ms"), due_at_ms=when.get("due_at_ms"),
            )  # fmt: skip
        except Unreachable as error:
            self._note_broken(error, message)
            return
        except Conflict:
            # The group was over before this one came to it.
            if message.group is None:
                raise
            return
        except (Unavailable, RateLimited) as error:
            self._refused(error, message)
            return
        self._accepted(message, answer.id, answer.due_at_ms, when)
        self._books.note(message)

    def _note_broken(self, error: Unreachable, *messages: Message) -> None:
        """No answer came: they may or may not be there. Unless nothing was sent at all."""
        if isinstance(error.__cause__, ConnectionRefusedError):
            raise Away from None
        self._books.note(*messages)

    def _accepted(self, message: Message, id_: str, due_at_ms: int | None, when: dict[str, int]) -> None:
        message.id = id_
        asked_ms = when.get("due_at_ms")
        if asked_ms is not None and due_at_ms != asked_ms:
            self._complain(f"{message.label}: asked for {asked_ms}, answered {due_at_ms}")
        if due_at_ms is not None:
            latest_ms, wrong_ms = now_ms() + when.get("delay_ms", FAR_MS), self._books.wrong_by(now_ms())
            if not message.floor_ms - wrong_ms <= due_at_ms <= latest_ms + wrong_ms:
                self._complain(f"{message.label}: due at {due_at_ms}, not before {message.floor_ms}")
            message.floor_ms = due_at_ms
        self._known.append(message)

    def _lines(self) -> None:
        """NDJSON, read line by line: a line that came is an answer, even if the rest does not come."""
        messages, lines = [], []
        for _ in range(self._random.randrange(2, 80)):
            when, floor_ms, far = self._when()
            message = Message(new_label(), "topic", self._topic(), floor_ms, far=far)
            messages.append((message, when))
            line = {"destination": message.destination, "payload": payload_of(message.label).decode(), **when}
            lines.append(json.dumps(line | {"owner": self.name}))
        connection = http.client.HTTPConnection(self._address, timeout=20)
        answered = 0
        try:
            connection.connect()
        except OSError:
            raise Away from None
        # Before it is asked: whatever comes of it is theirs.
        self._books.note(*(message for message, _ in messages))
        try:
            body = "\n".join(lines) + "\n"
            connection.request("POST", "/v1/messages/batch", body, {"content-type": "application/x-ndjson"})
            response = connection.getresponse()
            if response.status == 503:
                self._refused(response.read().decode())
                return
            if response.status != 200:
                raise RuntimeError(f"a batch was answered with {response.status}: {response.read()[:500]!r}")
            for message, when in messages:
                line = json.loads(response.readline())
                answered += 1
                if "error" in line:
                    self._refused(line["error"])
                else:
                    self._accepted(message, line["id"], line["due_at_ms"], when)
        except (OSError, http.client.HTTPException, json.JSONDecodeError):
            # The server is gone; what was answered before is answered.
            pass
        finally:
            connection.close()

    def _arrow(self) -> None:
        messages, whens = [], []
        together_ms = now_ms() + 1_000
        together = self._random.random() < 0.3
        for _ in range(self._random.randrange(2, 200)):
            when, floor_ms, far = self._when()
            if together:
                when, floor_ms, far = {"due_at_ms": together_ms}, together_ms, False
            messages.append(Message(new_label(), "topic", self._topic(), floor_ms, far=far))
            whens.append(when)
        table = pa.table(
            {
                "destination": [message.destination for message in messages],
                "payload": pa.array([payload_of(message.label) for message in messages], pa.binary()),
                "delay_ms": pa.array([when.get("delay_ms") for when in whens], pa.int64()),
                "due_at_ms": pa.array([when.get("due_at_ms") for when in whens], pa.int64()),
            }
        )
        try:
            answers = self._client.schedule_arrow(table, owner=self.name).to_pylist()
        except Unreachable as error:
            self._note_broken(error, *messages)
            return
        except (Unavailable, RateLimited) as error:
            self._refused(error, *messages)
            return
        self._books.note(*messages)
        for message, when, answer in zip(messages, whens, answers, strict=True):
            if answer["error"] is not None:
                self._refused(answer["error"])
                continue
            self._accepted(message, answer["id"], answer["due_at_ms"], when)

    # Publications

    def _publish(self) -> None:
        delay_ms = self._random.choice((None, None, 1, 300, 2_000))
        floor_ms = 0 if delay_ms is None else now_ms() + delay_ms
        one = Publication(new_label(), self._topic(), floor_ms, repeated=False)
        try:
            answer = self._client.publish(one.topic, payload_of(one.label), delay_ms=delay_ms, key=one.label)
        except Unreachable as error:
            if isinstance(error.__cause__, ConnectionRefusedError):
                raise Away from None
        except Unavailable as error:
            self._refused(error)
            if not self.refused_may_be_done:
                return
        else:
            one.entry_id = answer.entry_ids[0]
        self._books.publications.append(one)

    def _publish_again(self) -> None:
        """Repeated, under the producer's sequence number, until it is answered."""
        self._sequence += 1
        one = Publication(new_label(), TOPICS[0], 0, repeated=True)
        body = json.dumps(
            {
                "payload": payload_of(one.label).decode(),
                "producer": self.name,
                "producer_sequence": self._sequence,
            }
        )
        noted = False
        while one.entry_id is None and not self._stopping.is_set():
            connection = http.client.HTTPConnection(self._address, timeout=20)
            try:
                connection.connect()
            except OSError:
                self._stopping.wait(AWAY_S)
                continue
            if not noted:
                self._books.publications.append(one)
                noted = True
            try:
                path = topic_path(one.topic, "messages")
                connection.request("POST", path, body, {"content-type": "application/json"})
                response = connection.getresponse()
                answer = json.loads(response.read())
            except (OSError, http.client.HTTPException, json.JSONDecodeError):
                continue
            finally:
                connection.close()
            if response.status == 503:
                self._refused(answer["detail"])
                continue
            if response.status != 201:
                raise RuntimeError(f"a publication was answered with {response.status}: {answer}")
            one.entry_id = answer["entry_ids"][0]

    # Commands

    def _command(self) -> None:
        if not self._known:
            return
        message = self._random.choice(self._known)
        settled = message.cancelled or any(command.state for command in message.commands)
        if settled or (message.group is not None and not message.far):
            return
        verbs = ("cancel", "send", "restart") if message.far else ("cancel", "restart", "restart", "send")
        self.command(message, self._random.choice(verbs))

    def command(self, message: Message, verb: Any) -> bool:
        """Give one command; whether it was answered."""
        assert message.id is not None
        command = Command(verb, now_ms())
        command.floor_ms = command.asked_at_ms
        try:
            match verb:
                case "cancel":
                    self._client.cancel(message.id)
                case "send":
                    self._client.send(message.id)
                case _:
                    delay_ms = self._random.randrange(1, self._longest_ms)
                    command.floor_ms += delay_ms
                    command.floor_ms = self._client.restart(message.id, delay_ms=delay_ms).due_at_ms or 0
            command.done = True
        except Unreachable as error:
            if isinstance(error.__cause__, ConnectionRefusedError):
                raise Away from None
            message.commands.append(command)
            return False
        except Conflict as conflict:
            command.state = conflict.state
            if conflict.state not in {"sent", "cancelled", "uncertain"}:
                self._complain(f"{message.label}: {verb} was refused as {conflict.state}: {conflict}")
        except Unavailable as error:
            self._refused(error)
            if self.refused_may_be_done:
                message.commands.append(command)
            return False
        except TarryError as error:
            self._complain(f"{message.label}: {verb} was refused: {error!r}; {message.commands}")
        command.answered_at_ms = now_ms()
        message.commands.append(command)
        return True

    def _topic(self) -> str:
        return self._random.choice(TOPICS)

    def _refused(self, error: object, *messages: Message) -> None:
        """Count a refusal; `messages` were refused as a whole."""
        self._books.refused += 1
        if self.refused_may_be_done:
            self._books.note(*messages)
            return
        text = str(error)
        if "in a moment" not in text and "the server is stopping" not in text:
            self._complain(f"refused: {text[:200]}")

    def _complain(self, line: str) -> None:
        self._books.complaints.append(line)
