"""The log of several owners: whatever the order in which claims and frames come into it, seqs are dense and nothing acknowledged is missing (R14).

Hypothesis decides who claims when, whose records arrive, which answers are lost and who is cut off; nodes here are the rules
of the owner and of the reader, and nothing else.
"""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tarry.core.errors import Unavailable
from tarry.ledger.frame import FORMAT_VERSION, rows_parts, segment_id_of, unit_of
from tarry.ledger.log.envelope import LogClaim, LogRelease, encode_claim, encode_frame, encode_release
from tarry.ledger.log.fold import Fold, LogPosition, ValidClaim, ValidFrame
from tarry.ledger.log.ownership import Ownership
from tarry.ledger.log.partition import LogRecord
from tarry.testing.log import SimulatedLog
from tests.unit.ledger_kit import LEDGER_ID, record

NODES = 3
PART_BYTES = 128


class Node:
    """One server: it follows the log, claims it, appends and acknowledges."""

    def __init__(self, log: SimulatedLog, name: str) -> None:
        self.log = log
        self.name = name
        self.partition = log.connect(name)
        self.fold = Fold()
        self.ownership: Ownership | None = None
        self.next_seq = 0
        self.acknowledged: dict[int, bytes] = {}
        """Answered frames by their first seq."""
        self._sent: list[tuple[int, bytes]] = []

    def read(self) -> None:
        """Follow the log for some records."""
        for one in self.partition.read(self.fold.offset, 0):
            self.fold.take(*one)

    def claim(self, nonce: int) -> None:
        """Claim, and own if the claim is the one that counts."""
        self.partition.sever()
        self.partition = self.log.connect(self.name)
        self.ownership = None
        while self.fold.offset < self.log.end:
            self.read()
        mark = nonce.to_bytes(8)
        claim = LogClaim(self.name, mark, LEDGER_ID, b"", FORMAT_VERSION, 1, 0)
        self.partition.send(encode_claim(self.fold.position.epoch + 1, claim))
        while self.partition.arrive() is False:
            pass
        self.partition.deliveries(0)
        while self.fold.offset < self.log.end:
            for one in self.partition.read(self.fold.offset, 0):
                valid = self.fold.take(*one)
                if isinstance(valid, ValidClaim):
                    self.ownership = Ownership(valid.position) if valid.claim.nonce == mark else None
                    self.next_seq = valid.position.next_seq
                    self._sent = []

    def append(self, number: int, size: int) -> None:
        """Send a frame, if it believes itself the owner."""
        if self.ownership is None or self.ownership.ended:
            return
        epoch = self.ownership.position.epoch
        unit = unit_of([record(number, size), record(number + 1, 8)])
        pieces = rows_parts([unit], segment_id_of(LEDGER_ID, 1), 0, self.next_seq)
        sent = [
            self.partition.send(one) for one in encode_frame(epoch, 1, 4096, pieces, part_bytes=PART_BYTES)
        ]
        self._sent.append((self.next_seq, b"".join(pieces)))
        self.next_seq += 2
        self.ownership.sent(self.next_seq, range(sent[0], sent[-1] + 1))

    def listen(self) -> None:
        """Hear of deliveries, read gaps, and acknowledge what is durable."""
        ownership = self.ownership
        if ownership is None or ownership.ended:
            return
        for one in self.partition.deliveries(0):
            if one.error:
                ownership.failed(one.error)
            else:
                ownership.delivered(one.ticket, one.offset)
        while (gap := ownership.gap) is not None:
            records = self.partition.read(gap.offset, 0)
            if not records:
                break
            for each in records:
                if not ownership.read(*each):
                    break
        for position in ownership.durable():
            first_seq, frame = self._sent.pop(0)
            assert position.next_seq == first_seq + 2
            self.acknowledged[first_seq] = frame


def folded(records: list[LogRecord]) -> tuple[dict[int, bytes], Fold]:
    """The valid frames by their first seq; dense."""
    fold, frames, next_seq = Fold(), dict[int, bytes](), 1
    for offset, data in records:
        valid = fold.take(offset, data)
        if isinstance(valid, ValidFrame):
            assert valid.first_seq == next_seq
            next_seq = valid.position.next_seq
            frames[valid.first_seq] = valid.data
    return frames, fold


nodes = st.integers(0, NODES - 1)
steps = st.one_of(
    st.tuples(st.just("claim"), nodes, st.just(0)),
    st.tuples(st.just("append"), nodes, st.integers(0, 500)),
    st.tuples(st.just("append"), nodes, st.integers(0, 500)),
    st.tuples(st.just("listen"), nodes, st.just(0)),
    st.tuples(st.just("arrive"), nodes, st.integers(1, 3)),
    st.tuples(st.just("arrive"), nodes, st.integers(1, 3)),
    st.tuples(st.just("read"), nodes, st.just(0)),
    st.tuples(st.just("sever"), nodes, st.just(0)),
    st.tuples(st.just("foreign"), nodes, st.just(0)),
)


def played(script: list[tuple[str, int, int]], log: SimulatedLog) -> list[Node]:
    """Nodes that have done these steps on a log, with all that was on its way there."""
    every = [Node(log, f"node {n}") for n in range(NODES)]
    every[0].claim(0)
    for turn, (act, which, number) in enumerate(script, 1):
        node = every[which]
        if act == "claim":
            node.claim(turn)
        elif act == "append":
            node.append(turn, number)
        elif act == "listen":
            node.listen()
        elif act == "read":
            node.read()
        elif act == "arrive":
            for _ in range(number):
                node.partition.arrive()
        elif act == "sever":
            node.partition.sever()
        else:
            log.write(b"somebody else's record")
    while log.step():
        pass
    return every


@settings(max_examples=400, deadline=None)
@given(st.lists(steps, min_size=10, max_size=80), st.integers(0, 1 << 32), st.sampled_from((0.0, 0.3, 1.0)))
def test_seqs_are_dense_and_nothing_acknowledged_is_missing(
    script: list[tuple[str, int, int]], seed: int, silence: float
) -> None:
    log = SimulatedLog(Random(seed), silence)
    every = played(script, log)
    for node in every:
        node.listen()
    frames, _ = folded(log.records())
    for node in every:
        for first_seq, frame in node.acknowledged.items():
            assert frames.get(first_seq) == frame, (
                f"{node.name} acknowledged seq {first_seq}, which is not there"
            )
    acknowledged = [seq for node in every for seq in node.acknowledged]
    assert len(acknowledged) == len(set(acknowledged)), "two nodes acknowledged the same seq"


EPOCHS = st.integers(0, 4)
claims = st.builds(
    lambda epoch, name: [
        encode_claim(epoch, LogClaim(name, name.encode(), LEDGER_ID, b"", FORMAT_VERSION, 1, 0))
    ],
    EPOCHS,
    st.sampled_from("abc"),
)


def frame_of(epoch: int, first_seq: int, records: int, size: int) -> list[bytes]:
    """The records of a frame, in parts."""
    unit = unit_of([record(first_seq + n, size) for n in range(records)])
    pieces = rows_parts([unit], segment_id_of(LEDGER_ID, 1), 0, first_seq)
    # An owner writes one frame at each place.
    place = 4096 + 8 * (first_seq + 16 * (records + 4 * size))
    return encode_frame(epoch, 1, place, pieces, part_bytes=PART_BYTES)


frames = st.builds(frame_of, EPOCHS, st.integers(1, 8), st.integers(1, 3), st.sampled_from((0, 40, 300)))
releases = EPOCHS.map(lambda epoch: [encode_release(epoch, LogRelease("a", 0))])
foreign = st.just([b"somebody else's record"])


@settings(max_examples=400, deadline=None)
@given(st.lists(st.one_of(claims, frames, frames, releases, foreign), max_size=30), st.data())
def test_any_records_in_any_order_fold_to_dense_seqs(written: list[list[bytes]], data: st.DataObject) -> None:
    """No writer keeps to any rule here: epochs and seqs are anyone's, and parts of frames mix, are missing or come twice."""
    log = mixed(written, data)
    fold, epoch, next_seq = Fold(), 0, 1
    for offset, record_ in enumerate(log):
        valid = fold.take(offset, record_)
        assert fold.position.epoch - epoch == isinstance(valid, ValidClaim)
        epoch = fold.position.epoch
        if isinstance(valid, ValidFrame):
            assert valid.first_seq == next_seq
            assert epoch > 0
            next_seq += valid.header.records
        assert fold.position.next_seq == next_seq


def mixed(written: list[list[bytes]], data: st.DataObject) -> list[bytes]:
    """Records of several writers, each in its order, as they come into the log; some parts are lost, and some come twice."""
    queues = [list(records) for records in written]
    log: list[bytes] = []
    while queues:
        at = data.draw(st.integers(0, min(2, len(queues) - 1)))
        fate = data.draw(st.sampled_from(("comes", "comes", "comes", "comes", "twice", "lost")))
        log += queues[at][:1] * {"comes": 1, "twice": 2, "lost": 0}[fate]
        del queues[at][0]
        if not queues[at]:
            del queues[at]
    return log


@settings(max_examples=200, deadline=None)
@given(st.lists(steps, min_size=20, max_size=60), st.integers(0, 1 << 32), st.data())
def test_void_records_change_nothing_wherever_they_stand(
    script: list[tuple[str, int, int]], seed: int, data: st.DataObject
) -> None:
    log = SimulatedLog(Random(seed))
    every = [Node(log, f"node {n}") for n in range(NODES)]
    for turn, (act, which, number) in enumerate([("claim", 0, 0), *script], 1):
        if act == "claim":
            every[which].claim(turn)
        elif act == "append":
            every[which].append(turn, number)
        elif act == "arrive":
            every[which].partition.arrive()
    records = log.records()
    before, whole = folded(records)
    fold, noisy = Fold(), list[bytes]()
    for one in records:
        epoch = fold.position.epoch
        for _ in range(data.draw(st.integers(0, 2))):
            other = data.draw(st.sampled_from([one for one in range(6) if one not in (epoch, epoch + 1)]))
            noisy += data.draw(
                st.sampled_from(
                    (
                        [b"somebody else's record"],
                        frame_of(other, fold.position.next_seq, 1, 200),
                        [encode_claim(other, LogClaim("late", b"", LEDGER_ID, b"", FORMAT_VERSION, 1, 0))],
                        [encode_release(other, LogRelease("late", 0))],
                    )
                )
            )
        noisy.append(one.data)
        fold.take(*one)
    after, again = folded([LogRecord(offset, record_) for offset, record_ in enumerate(noisy)])
    assert after == before
    assert again.position[1:] == whole.position[1:]


@given(st.lists(steps, min_size=10, max_size=60), st.integers(0, 1 << 32), st.data())
def test_a_reader_that_goes_on_from_a_position_finds_the_same(
    script: list[tuple[str, int, int]], seed: int, data: st.DataObject
) -> None:
    log = SimulatedLog(Random(seed))
    every = [Node(log, f"node {n}") for n in range(NODES)]
    for turn, (act, which, number) in enumerate([("claim", 0, 0), *script], 1):
        if act == "claim":
            every[which].claim(turn)
        elif act == "append":
            every[which].append(turn, number)
        elif act == "arrive":
            every[which].partition.arrive()
    records = log.records()
    frames, whole = folded(records)
    stop = data.draw(st.integers(0, len(records)))
    begun = Fold()
    found = [begun.take(*one) for one in records[:stop]]
    going_on = Fold(begun.position)
    found += [going_on.take(*one) for one in records[begun.position.offset :]]
    again = [one.first_seq for one in found if isinstance(one, ValidFrame)]
    assert again == list(frames)
    assert going_on.position == whole.position


def test_a_node_that_cannot_reach_the_log_reads_nothing() -> None:
    partition = SimulatedLog().connect("a")
    partition.unreachable = True
    try:
        partition.read(0, 0)
    except Unavailable:
        return
    raise AssertionError("it read")


def test_a_position_before_the_first_claim_is_the_beginning() -> None:
    assert Fold().position == LogPosition(0, 0, 1)
