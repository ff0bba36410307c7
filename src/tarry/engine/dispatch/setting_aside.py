"""Setting records aside that cannot be processed, as an operator has told this start.

A record that is set aside is not replayed. A message that waits at such a seq ends as failed, durably, without being
read further than need be; one that only the index has ends so when it is due. An entry of a topic is passed over. The
registry remembers the seqs, so that later starts leave them aside by themselves. A seq at which there is no record is
not one of them: what is written there one day is somebody's message.
"""

import logging
from collections.abc import Iterable

from tarry.core.errors import Damage, NotFound
from tarry.engine.dispatch.dispatcher import Dispatcher
from tarry.engine.state.engine_state import EngineState
from tarry.ledger.ledger import Ledger
from tarry.ledger.record import FIRST_BATCH_SEQ, Key, Kind

log = logging.getLogger(__name__)


def end_set_aside(state: EngineState, ledger: Ledger, dispatcher: Dispatcher, given: Iterable[int]) -> None:
    """End the messages that wait at seqs which this start was told to set aside; say what each was."""
    nowhere = {seq for seq in state.aside.seqs if not _is_given_out(seq, state, ledger)}
    state.aside.seqs -= nowhere
    for seq in sorted(nowhere):
        log.warning(
            "there is no record at seq %d, and none is set aside: the ledger ends at %d",
            seq,
            ledger.durable_seq,
        )
    for seq in sorted(set(given) - nowhere):
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


def _is_given_out(seq: int, state: EngineState, ledger: Ledger) -> bool:
    if seq >= FIRST_BATCH_SEQ:
        return state.batches.of(seq) is not None
    return seq <= ledger.durable_seq
