"""The choice of messages by a query: which messages of a page it means."""

from tarry.core.messages.message import MessageQuery, MessageView


def matches(view: MessageView, query: MessageQuery) -> bool:
    """Whether a message is what a query asks for, its state and its due instant apart."""
    if query.key_prefix is not None and not (view.key or "").startswith(query.key_prefix):
        return False
    return all(
        wanted is None or wanted == is_
        for wanted, is_ in (
            (query.owner, view.owner),
            (query.destination, view.destination),
            (query.namespace, view.namespace),
            (query.key, view.key),
            (query.group, view.group),
            (query.door, view.door),
        )
    )


def is_due_within(due_at_ms: int | None, query: MessageQuery) -> bool:
    """Whether a due instant is in the range that a query asks for."""
    low, high = query.due_from_ms, query.due_to_ms
    if low is None and high is None:
        return True
    return due_at_ms is not None and (low or 0) <= due_at_ms and (high is None or due_at_ms < high)
