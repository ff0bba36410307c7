"""Setting records aside that cannot be processed, as an operator has told this start.

A record that is set aside is not replayed. A message that waits at such a seq ends as failed, durably, without being
read further than need be; one that only the index has ends so when it is due. An entry of a topic is passed over. The
registry remembers the seqs, so that later starts leave them aside by themselves.
"""

import logging
from collections.abc import Iterable

from tarry.core.errors import Damage, NotFound
from tarry.engine.dispatch.dispatcher import Dispatcher
from tarry.engine.state.engine_state import EngineState
from tarry.ledger.ledger import Ledger
from tarry.ledger.record import Key, Kind

log = logging.getLogger(__name__)


def end_set_aside(state: EngineState, ledger: Ledger, dispatcher: Dispatcher, given: Iterable[int]) -> None:
    """End the messages that wait at seqs which this start was told to set aside; say what each was."""
    for seq in sorted(given):
        if seq in state.aside.known:
            log.warning("seq %d was set aside before", seq)
            continue
        try:
            stored = ledger.read(seq)
        except (NotFound, Damage):
            log.warning("seq %d is set aside: a message that waits there ends as failed when it is due", seq)
            continue
        log.warning("seq %d is set aside, a record of kind %s", seq, Kind(stored.kind).name)
        key = Key(stored.fire_at_ms, seq)
        if stored.kind == Kind.PUT and seq not in state.dead and not state.passed.has_passed(key):
            dispatcher.end_aside(key, decided=seq not in state.aside.skipped)
