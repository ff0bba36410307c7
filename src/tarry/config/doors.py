"""The doors beside the native HTTP API: one table, and one module of settings, for each."""

from typing import Final

from tarry.config.dapr import Dapr
from tarry.config.matrix import Matrix
from tarry.config.pulsar import Pulsar
from tarry.config.table import Section

DOORS: Final = ("matrix", "pulsar", "dapr")


class Doors(Section, frozen=True, kw_only=True):
    """The protocols that existing clients speak."""

    matrix: Matrix = Matrix()
    pulsar: Pulsar = Pulsar()
    dapr: Dapr = Dapr()
