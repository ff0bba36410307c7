"""The rights table of all doors as a page: `docs/rights.md`."""

import sys
from collections.abc import Mapping
from typing import Final

from tarry.core.tenants.rights import DAPR_GRPC, PULSAR, REACHES, Right
from tarry.doors.dapr.operations import DAPR_HTTP
from tarry.doors.http.operations import HTTP
from tarry.doors.matrix.operations import MATRIX
from tarry.doors.pulsar.admin.operations import PULSAR_ADMIN

RIGHTS: Final[Mapping[str, Mapping[str, Right]]] = {
    "native HTTP": HTTP,
    "Pulsar administration": PULSAR_ADMIN,
    "Pulsar": PULSAR,
    "Dapr HTTP": DAPR_HTTP,
    "Dapr gRPC": DAPR_GRPC,
    "Matrix": MATRIX,
}
"""By door, by operation."""


_INTRODUCTION: Final = """\
# Who may do what

Every operation of every door, with the role and the namespaces that it requires. This page is made of the rows by which
the doors serve their operations, so there is no operation that it does not list. A token has
roles and namespaces ([configuration](configuration.md)); a role in this table may always be replaced by `admin`. On
loopback without tokens everybody may do everything.
"""


def table() -> str:
    """The whole table as a page: `docs/rights.md`."""
    lines = [_INTRODUCTION, "## Reaches", "", "| reach | who |", "|---|---|"]
    lines += [f"| {reach} | {text} |" for reach, text in REACHES.items()]
    for door, rows in RIGHTS.items():
        lines += ["", f"## {door}", "", "| operation | role | reach |", "|---|---|---|"]
        lines += [f"| `{name}` | {_roles(right)} | {right.reach} |" for name, right in rows.items()]
    return "\n".join(lines) + "\n"


def _roles(right: Right) -> str:
    if right.roles:
        return " or ".join(dict.fromkeys((*right.roles, "admin")))
    return "any" if right.reach == "token" else ""


if __name__ == "__main__":
    sys.stdout.write(table())
