"""The peers, in the order in which they take their turns."""

from collections.abc import Callable
from typing import Final

from bench.peers import beanstalkd, bullmq, nats, postgresql, rabbitmq, redis
from bench.peers.peer import FAILURES, Entrant, Peer
from bench.run import Run

ENTRANTS: Final[list[Entrant]] = [
    *beanstalkd.ENTRANTS,
    *redis.ENTRANTS,
    *postgresql.ENTRANTS,
    *bullmq.ENTRANTS,
    *rabbitmq.ENTRANTS,
    *nats.ENTRANTS,
]


def in_turn(run: Run, work: Callable[[Run, str, Peer], None]) -> None:
    """Start one after the other and measure something with it; who cannot be had is left out from then on."""
    for entrant in ENTRANTS if run.peers else []:
        if entrant.name in run.figures.skipped:
            continue
        run.say(entrant.name)
        with run.place() as place:
            try:
                peer = entrant.start(place / "peer")
                try:
                    work(run, entrant.name, peer)
                finally:
                    peer.stop()
            except FAILURES as error:
                run.skip(entrant.name, str(error))
