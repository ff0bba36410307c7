"""Groups: of several messages with one group at most one is ever sent, and sending one discards the others.

A member may have no due instant while its group holds one that has; when the last of those goes unsent, all go. Who
is in a group is kept in the registry; this is what it means.
"""

from tarry.core.deadset import DeadSet
from tarry.core.errors import Conflict, Damage
from tarry.engine.bodies import Bodies
from tarry.engine.versions import end_of, end_unread_member
from tarry.ledger.record import Finalise, Key, Put, PutHead, Record, decode_put
from tarry.registry.registry import Group, Member, Registry


class Groups:
    """The groups that have waiting members, and those that have ended."""

    def __init__(self, registry: Registry, bodies: Bodies, dead: DeadSet) -> None:
        self.seqs: set[int] = set()
        """Of the waiting members. These stay in the ledger, so that their ends can be written at once."""
        self._registry = registry
        self._bodies = bodies
        self._dead = dead

    # What records add up to

    def load(self) -> None:
        """Find the waiting members in the registry."""
        for _, group in self._registry.groups.rows():
            self.seqs.update(member.current.seq for member in group.members)

    def join(self, put: Put, origin: Key, current: Key) -> None:
        """A version of a member was accepted."""
        assert put.group is not None
        group = self._registry.groups.get(put.owner, put.group) or Group([])
        others = self._without(group, origin)
        if group.closed_at_ms is None:
            others.append(Member(origin, current, put.due_at_ms is not None))
            self.seqs.add(current.seq)
        self._put(put.owner, put.group, Group(others, group.closed_at_ms))

    def leave(self, owner: str | None, name: str, origin: Key) -> None:
        """A member has ended."""
        group = self._registry.groups.get(owner, name)
        if group is None:
            return
        left = self._without(group, origin)
        if left or group.closed_at_ms is not None:
            self._put(owner, name, Group(left, group.closed_at_ms))
        else:
            self._registry.groups.remove(owner, name)

    def close(self, owner: str, name: str, at_ms: int) -> None:
        """Of a group at most one is ever sent: remember that it was."""
        group = self._registry.groups.get(owner, name)
        if group is not None:
            self.seqs.difference_update(member.current.seq for member in group.members)
        self._put(owner, name, Group([], at_ms))

    def _without(self, group: Group, origin: Key) -> list[Member]:
        self.seqs.difference_update(member.current.seq for member in group.members if member.origin == origin)
        return [member for member in group.members if member.origin != origin]

    def _put(self, owner: str | None, name: str, group: Group) -> None:
        self._registry.groups.put((owner, name), group, (group.closed_at_ms,))

    # What follows from them

    def check(self, owner: str, name: str, timed: bool, limit: int) -> None:
        """Raise unless a new member may join this group."""
        group = self._registry.groups.get(owner, name)
        if group is not None and group.closed_at_ms is not None:
            raise Conflict(
                "the group has ended: one of its messages was sent, or all were discarded", "closed"
            )
        members = group.members if group else []
        if len(members) >= limit:
            raise Conflict(f"the group has its limit of {limit} messages", "full")
        if not timed and not any(member.timed for member in members):
            raise Conflict(
                "a message without a due instant needs a group that holds one with a due instant", "untimed"
            )

    def ends_of_siblings(self, owner: str, name: str, origin: Key, now_ms: int) -> list[Record]:
        """The ends of the other members of a group, because one of them is sent."""
        group = self._registry.groups.get(owner, name)
        if group is None:
            return []
        reason = "another of its group was sent"
        return [
            self._end_of(member, owner, name, now_ms, reason)
            for member in group.members
            if member.origin != origin and member.current.seq not in self._dead
        ]

    def ends_of_orphans(self, put: Put | PutHead, origin: Key, now_ms: int) -> list[Record]:
        """The ends of the other members of a group, if the one that goes unsent was the last with a due instant."""
        group = None if put.group is None else self._registry.groups.get(put.owner, put.group)
        left = [member for member in group.members if member.origin != origin] if group else []
        if any(member.timed for member in left):
            return []
        reason = "its group lost its last message with a due instant"
        name = put.group or ""
        return [self._end_of(member, put.owner, name, now_ms, reason) for member in left]

    def _end_of(self, member: Member, owner: str, name: str, now_ms: int, reason: str) -> Finalise:
        try:
            put = decode_put(self._bodies.one(member.current.seq))
        except Damage as damage:
            reason = f"{reason}; it was {damage}"
            return end_unread_member(member.current, member.origin, owner, name, "cancelled", now_ms, reason)
        return end_of(put, member.current, "cancelled", now_ms, reason)
