"""The peers, in the order in which they take their turns."""

from typing import Final

from bench.peers import beanstalkd, bullmq, postgresql, redis
from bench.peers.peer import Entrant

ENTRANTS: Final[list[Entrant]] = [
    *beanstalkd.ENTRANTS,
    *redis.ENTRANTS,
    *postgresql.ENTRANTS,
    *bullmq.ENTRANTS,
]
