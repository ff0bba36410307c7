"""Every operation of the administration, one row for each method of each path. What has no row is not served.

From the rows follow the routes, the checks of access and `docs/rights.md`.
"""

from collections.abc import Mapping
from typing import Final

from tarry.core.tenants.rights import Right
from tarry.doors.pulsar.admin import (
    cluster,
    messages,
    namespaces,
    policies,
    rules,
    schemas,
    subscriptions,
    topics,
    unserved,
)
from tarry.doors.pulsar.admin.call import Operations

OPERATIONS: Final[Operations] = (
    *cluster.OPERATIONS,
    *namespaces.OPERATIONS,
    *topics.OPERATIONS,
    *subscriptions.OPERATIONS,
    *messages.OPERATIONS,
    *schemas.OPERATIONS,
    *policies.OPERATIONS,
    *rules.OPERATIONS,
    *unserved.OPERATIONS,
)

PULSAR_ADMIN: Final[Mapping[str, Right]] = {operation.name: operation.right for operation in OPERATIONS}
"""The right of each operation, by its name."""
