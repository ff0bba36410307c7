"""Groups: of several messages with one group at most one is ever sent, and sending one discards the others.

A member may have no due instant while its group holds one that has; when the last of those goes unsent, all go. A group
may be led by a message outside it: then nothing of it is due until the leader is sent, and unsent it takes the group
along. Who is in a group is kept in the registry; this is what it means.
"""

from collections.abc import Sequence
from typing import Final

from tarry.core.deadset import DeadSet
from tarry.core.errors import Conflict, Damage
from tarry.engine.bodies import Bodies
from tarry.engine.versions import end_of, end_unread_member
from tarry.ledger.read_record import PutHead
from tarry.ledger.record import Finalise, Key, Put, Record
from tarry.registry.registry import Group, Member, Registry

UNLED: Final = "the message that led its group was not sent"


class Groups:
    """The groups that have waiting members, and those that have ended."""

    def __init__(self, registry: Registry, bodies: Bodies, dead: DeadSet) -> None:
        self.seqs: set[int] = set()
        """Of the waiting members. These stay in the ledger, so that their ends can be written at once."""
        self._leaders: dict[int, tuple[str, str]] = {}
        """By the first seq of each waiting leader: the owner and the name of its group."""
        self._owners: dict[str, set[str]] = {}
        """By the name of groups with waiting members: whose they are."""
        self._registry = registry
        self._bodies = bodies
        self._dead = dead

    # What records add up to

    def load(self) -> None:
        """Find the waiting members in the registry."""
        for (owner, name), group in self._registry.groups.rows():
            self.seqs.update(member.current.seq for member in group.members)
            self._note(owner, name, group)

    def join(self, put: Put, origin: Key, current: Key) -> None:
        """A version of a member was accepted."""
        assert put.group is not None
        group = self._registry.groups.get(put.owner, put.group) or Group([])
        others = self._without(group, origin)
        if group.closed_at_ms is None:
            # One that waits for its leader has a delay, and no due instant yet.
            timed = put.due_at_ms is not None or put.delay_ms is not None
            others.append(Member(origin, current, timed))
            self.seqs.add(current.seq)
        self._put(put.owner, put.group, Group(others, group.closed_at_ms, group.leader))

    def lead(self, owner: str, name: str, origin: Key) -> None:
        """A message that leads a group was accepted."""
        group = self._registry.groups.get(owner, name) or Group([])
        self._put(owner, name, Group(group.members, group.closed_at_ms, origin))

    def leave(self, owner: str | None, name: str, origin: Key) -> None:
        """A member has ended."""
        group = self._registry.groups.get(owner, name)
        if group is not None:
            self._put(owner, name, Group(self._without(group, origin), group.closed_at_ms, group.leader))

    def close(self, owner: str, name: str, at_ms: int) -> None:
        """Of a group at most one is ever sent: remember that it was."""
        group = self._registry.groups.get(owner, name)
        if group is not None:
            self.seqs.difference_update(member.current.seq for member in group.members)
        self._put(owner, name, Group([], at_ms))

    def leader_ended(self, origin: Key) -> None:
        """A message has ended; if it led a group, the group is led no more."""
        led = self._leaders.pop(origin.seq, None)
        group = None if led is None else self._registry.groups.get(*led)
        if led is not None and group is not None:
            self._put(*led, Group(group.members, group.closed_at_ms))

    def _without(self, group: Group, origin: Key) -> list[Member]:
        self.seqs.difference_update(member.current.seq for member in group.members if member.origin == origin)
        return [member for member in group.members if member.origin != origin]

    def _put(self, owner: str | None, name: str, group: Group) -> None:
        self._note(owner or "", name, group)
        if group.members or group.leader is not None or group.closed_at_ms is not None:
            self._registry.groups.put((owner, name), group, (group.closed_at_ms,))
        else:
            self._registry.groups.remove(owner, name)

    def _note(self, owner: str, name: str, group: Group) -> None:
        if group.leader is not None:
            self._leaders[group.leader.seq] = owner, name
        owners = self._owners.setdefault(name, set())
        if group.members:
            owners.add(owner)
        else:
            owners.discard(owner)
        if not owners:
            del self._owners[name]

    # What follows from them

    def owners_of(self, name: str) -> frozenset[str]:
        """Who has waiting members in a group of this name."""
        return frozenset(self._owners.get(name, ()))

    def check(self, owner: str, name: str, timed: bool, limit: int, ahead: Sequence[bool] = ()) -> None:
        """Raise unless a new member may join this group; `ahead` join it before, timed or not."""
        group = self._registry.groups.get(owner, name) or Group([])
        if group.closed_at_ms is not None:
            raise Conflict(
                "the group has ended: one of its messages was sent, or all were discarded", "closed"
            )
        if group.leader is not None:
            raise Conflict("the group waits for the message that leads it", "led")
        if len(group.members) + len(ahead) >= limit:
            raise Conflict(f"the group has its limit of {limit} messages", "full")
        if not timed and not any(ahead) and not any(member.timed for member in group.members):
            raise Conflict(
                "a message without a due instant needs a group that holds one with a due instant", "untimed"
            )

    def check_new(self, owner: str, name: str) -> None:
        """Raise unless a message may lead a group of this name: one that nobody has been in."""
        if self._registry.groups.get(owner, name) is not None:
            raise Conflict("there is such a group already; only a new one can be led", "exists")

    def check_unled(self, put: Put) -> None:
        """Raise if a message waits for the one that leads its group."""
        group = None if put.group is None else self._registry.groups.get(put.owner, put.group)
        if group is not None and group.leader is not None:
            raise Conflict("the message waits for the one that leads its group", "led")

    def led_by(self, origin: Key) -> list[Member]:
        """The members that wait for a message."""
        led = self._leaders.get(origin.seq)
        group = None if led is None else self._registry.groups.get(*led)
        return [] if group is None else group.members

    def group_of(self, leader: Key) -> tuple[str, str]:
        """The owner and the name of the group that waits for a message."""
        return self._leaders.get(leader.seq, ("", ""))

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
        """The ends of all that cannot go out now that this one goes unsent.

        Those are the others of its group, if it was the last there with a due instant, and the group that it led.
        """
        group = None if put.group is None else self._registry.groups.get(put.owner, put.group)
        left = [member for member in group.members if member.origin != origin] if group else []
        if any(member.timed for member in left):
            return []
        reason = "its group lost its last message with a due instant"
        name = put.group or ""
        ends: list[Record] = [self._end_of(member, put.owner, name, now_ms, reason) for member in left]
        return ends + self.ends_of_led(origin, now_ms)

    def ends_of_led(self, origin: Key, now_ms: int, reason: str = UNLED) -> list[Record]:
        """The ends of the members that waited for a message, which goes unsent or leads no further."""
        owner, name = self.group_of(origin)
        return [self._end_of(member, owner, name, now_ms, reason) for member in self.led_by(origin)]

    def _end_of(self, member: Member, owner: str, name: str, now_ms: int, reason: str) -> Finalise:
        try:
            put = self._bodies.version(member.current.seq)
        except Damage as damage:
            reason = f"{reason}; it was {damage}"
            return end_unread_member(member.current, member.origin, owner, name, "cancelled", now_ms, reason)
        return end_of(put, member.current, "cancelled", now_ms, reason)
