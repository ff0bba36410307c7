"""Operations on pauses: of one message, and of topics, owners and destinations."""

from tarry.client.call import ClientCall, ServerAnswer, as_json, query, reads
from tarry.client.operations import message_path, message_view
from tarry.client.shapes import MessageView, Pause, PauseList

_pause = reads(Pause)


def pause(
    id: str | None = None, *, name: str | None = None, namespace: str | None = None
) -> ClientCall[MessageView]:
    """Keep a message from going out until it is resumed, by its id or its name. What is left of its delay is frozen."""
    return ClientCall("POST", message_path(id, name, namespace) + "/pause", message_view, repeatable=True)


def resume(
    id: str | None = None, *, name: str | None = None, namespace: str | None = None
) -> ClientCall[MessageView]:
    """Let the delay of a paused message go on, by its id or its name."""
    return ClientCall("POST", message_path(id, name, namespace) + "/resume", message_view)


def pause_place(
    *,
    topic: str | None = None,
    owner: str | None = None,
    destination: str | None = None,
    namespace: str | None = None,
) -> ClientCall[Pause]:
    """Hold the messages of a topic, of an owner or for a destination once they are due; one of the three is given.

    A destination is an address, or all addresses of a host (`https://example.org`).
    """
    return _said("/v1/pauses", topic, owner, destination, namespace)


def resume_place(
    *,
    topic: str | None = None,
    owner: str | None = None,
    destination: str | None = None,
    namespace: str | None = None,
) -> ClientCall[Pause]:
    """Let the messages of a paused topic, owner or destination go out again, in order and as fast as their rates allow."""
    return _said("/v1/pauses/resume", topic, owner, destination, namespace)


def pauses(*, namespace: str | None = None) -> ClientCall[list[Pause]]:
    """The paused topics, owners and destinations of a namespace, or of all."""

    def read(answered: ServerAnswer) -> list[Pause]:
        return _list(answered).pauses

    return ClientCall("GET", query("/v1/pauses", namespace=namespace), read, repeatable=True)


_list = reads(PauseList)


def _said(
    path: str, topic: str | None, owner: str | None, destination: str | None, namespace: str | None
) -> ClientCall[Pause]:
    body = {"topic": topic, "owner": owner, "destination": destination, "namespace": namespace}
    given = as_json({name: value for name, value in body.items() if value is not None})
    return ClientCall("POST", path, _pause, given, repeatable=path == "/v1/pauses")
