"""Every cell of the transition table, said a second time by hand: the table cannot change unnoticed."""

import pytest

from tarry.core.errors import Conflict
from tarry.core.messages.lifecycle import FINALISED, TRANSITIONS, WAIT, Event, State, next_state

W = "wait"
X = "conflict"
ROWS = {
    #                restart      pause        send         retry  cancel       claim   delivered  not_delivered  refused  ready
    "scheduled": ("scheduled", "scheduled", "scheduled", X, "cancelled", "sending", X, X, X, "sent"),
    "sending": (W, W, W, X, W, X, "sent", "scheduled", "failed", X),
    "sent": (X, X, X, X, X, X, X, X, X, X),
    "cancelled": (X, X, X, X, X, X, X, X, X, X),
    "failed": (X, X, X, "scheduled", X, X, X, X, X, X),
}
CELLS = [
    (State(state), event, after)
    for state, row in ROWS.items()
    for event, after in zip(Event, row, strict=True)
]


@pytest.mark.parametrize(("state", "event", "after"), CELLS)
def test_every_cell(state: State, event: Event, after: str) -> None:
    if after == X:
        with pytest.raises(Conflict) as caught:
            next_state(state, event)
        assert caught.value.state == state
        assert str(state) in str(caught.value)
    elif after == W:
        assert next_state(state, event) is WAIT
    else:
        assert next_state(state, event) == State(after)


def test_the_table_above_is_whole() -> None:
    assert list(ROWS) == list(State)
    assert len(CELLS) == len(State) * len(Event)


def test_nothing_but_a_retry_leads_out_of_the_end() -> None:
    assert {State.SENT, State.CANCELLED, State.FAILED} == FINALISED
    out = {(state, event) for state, event in TRANSITIONS if state in FINALISED}
    assert out == {(State.FAILED, Event.RETRY)}


def test_the_end_is_reached_from_everywhere() -> None:
    reached = set(FINALISED)
    while True:
        more = {state for (state, _), after in TRANSITIONS.items() if after in reached} - reached
        if not more:
            break
        reached |= more
    assert reached == set(State)


def test_a_refused_command_is_told_in_a_sentence() -> None:
    with pytest.raises(Conflict, match=r"^the message is cancelled, so it cannot be retried$"):
        next_state(State.CANCELLED, Event.RETRY)
