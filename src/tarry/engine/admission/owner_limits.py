"""Limits of owners: how many of their messages may wait, and how fast they may schedule."""

from tarry.core.errors import RateLimited
from tarry.core.rules.policy import Effective, Level
from tarry.core.tenants.holder import Holder
from tarry.core.tenants.rates import Rates
from tarry.engine.state.pending import Pending


class OwnerLimits:
    """Checks how many messages of an owner wait, and charges accepted ones to the owner's rate."""

    def __init__(self, pending: Pending) -> None:
        self._pending = pending
        self._rates = Rates()

    @staticmethod
    def applies(policy: Effective) -> bool:
        """Whether a policy limits its owners at all."""
        return bool(policy.max_pending_per_owner or policy.accept_per_second)

    def charge(self, holder: Holder, policy: Effective, level: Level, now_ms: int, before: int = 0) -> None:
        """Raise `TooManyPending` or `RateLimited`, or charge one message; `before` it come so many of its unit.

        `level` has set a field of the policy. The last rule to be asked: a message that is refused for another reason is not charged.
        """
        self._pending.check(holder, policy.max_pending_per_owner, level, before)
        if policy.accept_per_second:
            wait_ms = self._rates.wait_ms(holder, policy.accept_per_second, now_ms)
            if wait_ms:
                most_a_second = f"{policy.accept_per_second:g} messages a second"
                raise RateLimited(
                    wait_ms,
                    f"an owner may schedule at most {most_a_second}, set on {level('accept_per_second')}",
                )
