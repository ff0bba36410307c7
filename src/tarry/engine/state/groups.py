"""Groups: of several messages with one group at most one is ever sent, and sending one discards the others.

A member may have no due instant while its group holds one that has; when the last of those goes unsent, all go. A group
may be led by a message outside it: then nothing of it is due until the leader is sent, and unsent it takes the group
along. A group is its holder's: one of the same name in another namespace is another group. Who is in a group is kept in the
registry; this is what it means.

A group that has ended is forgotten after a while, and then its name may begin another one. The name is therefore never enough to
tell what belongs to whom: a group is its members, by their origins, and an open group is touched by its own members alone.
"""

from collections.abc import Callable, Sequence
from typing import Final

from tarry.core.errors import Conflict, Damage
from tarry.core.sets.deadset import DeadSet
from tarry.core.tenants.holder import UNSCOPED, Holder
from tarry.engine.bodies.bodies import Bodies
from tarry.engine.records.versions import end_of, end_unread_member
from tarry.ledger.read_record import PutHead
from tarry.ledger.record import Claim, Finalise, Key, Put, Record
from tarry.registry.registry import GroupRow, MemberRow, Registry

UNLED: Final = "the message that led its group was not sent"


class Groups:
    """The groups with waiting members, and the groups that have ended."""

    def __init__(self, registry: Registry, bodies: Bodies, dead: DeadSet) -> None:
        self.seqs: set[int] = set()
        """Seqs of the waiting members. They stay in the ledger, so that their ends can be written at once."""
        self._leaders: dict[int, tuple[Holder, str]] = {}
        """By the first seq of each waiting leader: the holder and the name of its group."""
        self._holders: dict[str, set[Holder]] = {}
        """By the name of groups with waiting members: whose they are."""
        self._unscoped = False
        """Whether there may be groups of format 1, of which the namespace is not known."""
        self._registry = registry
        self._bodies = bodies
        self._dead = dead

    # What records add up to

    def load(self) -> None:
        """Find the waiting members in the registry."""
        for (namespace, owner, name), group in self._registry.groups.rows():
            self.seqs.update(member.current.seq for member in group.members)
            self._note(Holder(namespace, owner), name, group)
            if namespace == UNSCOPED:
                self._scope(owner, name, group)

    def _scope(self, owner: str, name: str, group: GroupRow) -> None:
        """Divide a group of format 1 by the namespaces of its members; one that has ended stays as it is."""
        self._unscoped = True
        if group.closed_at_ms is not None:
            return
        parts: dict[str, list[MemberRow]] = {}
        for member in group.members:
            parts.setdefault(self._namespace_of(member), []).append(member)
        kept = parts.pop(UNSCOPED, [])
        # A leader leads those that were accepted with it, in its own namespace.
        leaderless = len(parts) != 1 or bool(kept)
        self._put(Holder(UNSCOPED, owner), name, GroupRow(kept, None, group.leader if leaderless else None))
        for namespace, members in parts.items():
            leader = None if leaderless else group.leader
            self._put(Holder(namespace, owner), name, GroupRow(members, None, leader))

    def _namespace_of(self, member: MemberRow) -> str:
        try:
            return self._bodies.version(member.current.seq).namespace
        except Damage:
            return UNSCOPED

    def join(self, put: Put, origin: Key, current: Key) -> None:
        """A version of a member was accepted."""
        assert put.group is not None
        holder = Holder(put.namespace, put.owner)
        group = self._open(holder, put.group) if put.origin is None else self._group_of(put, origin)
        if group is None:
            # It was chosen of a group that has ended, and is in no other.
            return
        # One that waits for its leader has a delay, and no due instant yet.
        timed = put.due_at_ms is not None or put.delay_ms is not None
        members = [*self._without(group, origin), MemberRow(origin, current, timed)]
        self.seqs.add(current.seq)
        self._put(holder, put.group, GroupRow(members, None, group.leader))

    def lead(self, holder: Holder, name: str, origin: Key) -> None:
        """A message that leads a group was accepted."""
        self._put(holder, name, GroupRow(self._open(holder, name).members, None, origin))

    def _open(self, holder: Holder, name: str) -> GroupRow:
        """The group that a message joins which was let in.

        If one that has ended is still here, as in a registry that a crash left, it had been forgotten by then.
        """
        group = self._registry.groups.get(*holder, name)
        return GroupRow([]) if group is None or group.closed_at_ms is not None else group

    def leave(self, holder: Holder, name: str, origin: Key) -> None:
        """A member has ended."""
        group = self._registry.groups.get(*holder, name)
        if group is not None:
            self._put(holder, name, GroupRow(self._without(group, origin), group.closed_at_ms, group.leader))

    def sent(self, holder: Holder, name: str, origin: Key, at_ms: int) -> None:
        """A message was sent, which ends its group."""
        self._close(holder, name, at_ms, lambda member: member.origin == origin)

    def _close(self, holder: Holder, name: str, at_ms: int, is_one: Callable[[MemberRow], bool]) -> None:
        """Remember that the one message of a group was sent. An open group without that one is the next of its name."""
        group = self._registry.groups.get(*holder, name)
        if group is not None and group.closed_at_ms is None:
            if not any(map(is_one, group.members)):
                return
            self.seqs.difference_update(member.current.seq for member in group.members)
        self._put(holder, name, GroupRow([], at_ms))

    def claimed(self, claim: Claim) -> None:
        """One of a group is about to be sent; the others end with it."""
        holder = Holder(claim.namespace, claim.owner)
        if claim.namespace == UNSCOPED:
            holder = self._holder_of(claim) or holder
        self._close(holder, claim.group, claim.claimed_at_ms, lambda member: member.current.seq == claim.seq)

    def _holder_of(self, claim: Claim) -> Holder | None:
        """The holder of a group that an earlier version claimed: the one in whose group the claimed version waits."""
        for holder in self._holders.get(claim.group, ()):
            group = self._registry.groups.get(*holder, claim.group)
            members = [] if group is None or holder.owner != claim.owner else group.members
            if any(member.current.seq == claim.seq for member in members):
                return holder
        return None

    def leader_ended(self, origin: Key) -> None:
        """A message has ended; if it led a group, the group is led no more."""
        led = self._leaders.pop(origin.seq, None)
        group = None if led is None else self._registry.groups.get(*led[0], led[1])
        if led is not None and group is not None:
            self._put(*led, GroupRow(group.members, group.closed_at_ms))

    def _without(self, group: GroupRow, origin: Key) -> list[MemberRow]:
        self.seqs.difference_update(member.current.seq for member in group.members if member.origin == origin)
        return [member for member in group.members if member.origin != origin]

    def _put(self, holder: Holder, name: str, group: GroupRow) -> None:
        self._note(holder, name, group)
        if group.members or group.leader is not None or group.closed_at_ms is not None:
            self._registry.groups.put((*holder, name), group, (group.closed_at_ms,))
        else:
            self._registry.groups.remove(*holder, name)

    def _note(self, holder: Holder, name: str, group: GroupRow) -> None:
        if group.leader is not None:
            self._leaders[group.leader.seq] = holder, name
        holders = self._holders.setdefault(name, set())
        if group.members:
            holders.add(holder)
        else:
            holders.discard(holder)
        if not holders:
            del self._holders[name]

    # What follows from them

    def owners_of(self, namespace: str, name: str) -> frozenset[str]:
        """Owners with waiting members in a group of this name, in a namespace."""
        return frozenset(one.owner for one in self._holders.get(name, ()) if one.namespace == namespace)

    def _known(self, holder: Holder, name: str) -> GroupRow | None:
        """The group of a holder, or one that ended under format 1, which may have been it."""
        group = self._registry.groups.get(*holder, name)
        if group is None and self._unscoped:
            return self._registry.groups.get(UNSCOPED, holder.owner, name)
        return group

    def check(self, holder: Holder, name: str, timed: bool, limit: int, ahead: Sequence[bool] = ()) -> None:
        """Raise unless a new member may join this group; `ahead` join it before, timed or not."""
        group = self._known(holder, name) or GroupRow([])
        if group.closed_at_ms is not None:
            raise Conflict(
                "the group has ended: one of its messages was sent, or all were discarded", "closed"
            )
        if group.leader is not None:
            raise Conflict("the group waits for the message that leads it; use another group", "led")
        if len(group.members) + len(ahead) >= limit:
            raise Conflict(f"the group has its limit of {limit} messages", "full")
        if not timed and not any(ahead) and not any(member.timed for member in group.members):
            raise Conflict(
                "a message without a due instant needs a group that holds one with a due instant", "untimed"
            )

    def check_new(self, holder: Holder, name: str) -> None:
        """Raise unless a message may lead a group of this name: one that nobody has been in."""
        if self._known(holder, name) is not None:
            raise Conflict("there is such a group already; only a new one can be led", "exists")

    def check_unled(self, put: Put, origin: Key) -> None:
        """Raise if a message waits for the one that leads its group."""
        group = self._group_of(put, origin)
        if group is not None and group.leader is not None:
            raise Conflict("the message waits for the one that leads its group; command that one", "led")

    def led_by(self, origin: Key) -> list[MemberRow]:
        """The members that wait for a message."""
        led = self._leaders.get(origin.seq)
        group = None if led is None else self._registry.groups.get(*led[0], led[1])
        return [] if group is None else group.members

    def group_of(self, leader: Key) -> tuple[Holder, str]:
        """The holder and the name of the group that waits for a message."""
        return self._leaders.get(leader.seq, (Holder(UNSCOPED, ""), ""))

    def _group_of(self, put: Put | PutHead, origin: Key) -> GroupRow | None:
        """The group in which a message waits."""
        if put.group is None:
            return None
        group = self._registry.groups.get(put.namespace, put.owner, put.group)
        waits = group is not None and any(member.origin == origin for member in group.members)
        return group if waits else None

    def ends_of_siblings(self, put: Put | PutHead, origin: Key, now_ms: int) -> list[Record]:
        """The ends of the other members of a message's group, because it is sent."""
        group = self._group_of(put, origin)
        if group is None:
            return []
        holder, name = Holder(put.namespace, put.owner), put.group or ""
        reason = "another of its group was sent"
        return [
            self._end_of(member, holder, name, now_ms, reason)
            for member in group.members
            if member.origin != origin and member.current.seq not in self._dead
        ]

    def ends_of_orphans(self, put: Put | PutHead, origin: Key, now_ms: int) -> list[Record]:
        """The ends of all that cannot go out now that this one goes unsent.

        Those are the others of its group, if it was the last there with a due instant, and the group that it led.
        """
        group = self._group_of(put, origin)
        left = [member for member in group.members if member.origin != origin] if group else []
        if any(member.timed for member in left):
            return []
        reason = "its group lost its last message with a due instant"
        holder, name = Holder(put.namespace, put.owner), put.group or ""
        ends: list[Record] = [self._end_of(member, holder, name, now_ms, reason) for member in left]
        return ends + self.ends_of_led(origin, now_ms)

    def ends_of_led(self, origin: Key, now_ms: int, reason: str = UNLED) -> list[Record]:
        """The ends of the members that waited for a message, which goes unsent or leads no further."""
        holder, name = self.group_of(origin)
        return [self._end_of(member, holder, name, now_ms, reason) for member in self.led_by(origin)]

    def _end_of(self, member: MemberRow, holder: Holder, name: str, now_ms: int, reason: str) -> Finalise:
        try:
            put = self._bodies.version(member.current.seq)
        except Damage as damage:
            reason = f"{reason}; it was {damage}"
            return end_unread_member(member.current, member.origin, holder, name, "cancelled", now_ms, reason)
        return end_of(put, member.current, "cancelled", now_ms, reason)
