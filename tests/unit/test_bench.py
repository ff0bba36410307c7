"""The benchmark's own arithmetic and its report: what is said of measurements, without any measurement."""

import socket
import struct
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from threading import Thread
from xml.etree import ElementTree

import pytest

from bench import plots, report, results
from bench.aims import AIMS, MET, MISSED, Aim
from bench.figures import Figure, Figures, said
from bench.names import OPERATIONS
from bench.parts import NAMES, PARTS
from bench.peers import nats
from bench.peers.rabbitmq import Confirmed, publish
from bench.plan import NORMAL, SIZES, Plan
from bench.results import Result
from bench.run import TARRY, Run
from bench.wire import Refused, drive


def result(part: str, figures: Figures, plan: Plan = NORMAL) -> Result:
    return Result(
        part, plan, "2026-01-01 00:00 UTC", 90.0, "make bench", "abc", [("memory", "1 GiB")], figures
    )


def figures(**values: list[float]) -> Figures:
    return Figures({TARRY: {name.replace("_", " "): found for name, found in values.items()}})


def test_a_figure_is_said_with_its_spread() -> None:
    assert said(Figure([12_345.0])) == "12.3 k"
    assert said(Figure([3.0, 1.0, 2.0])) == "2 (1 … 3)"
    assert said(None) == "–"


def test_a_ratio_is_taken_turn_by_turn() -> None:
    both = Figures({"Tarry": {"single": [10.0, 30.0, 20.0]}, "Redis": {"single": [10.0, 10.0, 5.0]}})
    found = both.ratio(("Tarry", "single"), ("Redis", "single"))
    # The medians alone would give 2.
    assert found is not None
    assert (found.values, found.median) == ([1.0, 3.0, 4.0], 3.0)
    assert both.ratio(("Tarry", "single"), ("Redis", "batched")) is None


def test_a_result_is_kept_and_read_again(tmp_path: Path) -> None:
    kept = figures(single=[1.5, 2.5])
    kept.skipped["beanstalkd"] = "not here"
    result("schedule", kept).save(tmp_path)
    (again,) = results.load_all(tmp_path, NAMES)
    assert (again.plan, again.took_s, again.machine) == (NORMAL, 90.0, [("memory", "1 GiB")])
    assert again.figures.values() == kept.values()
    assert again.figures.skipped == kept.skipped


def test_parts_measured_apart_make_one_report() -> None:
    late = Figures({TARRY: {"burst 10000 p99": [15.0]}})
    text = report.write(
        [result("schedule", figures(single=[9_000.0, 8_000.0, 12_000.0])), result("lateness", late)], []
    )
    assert "| HTTP schedules/s, 64 connections" in text
    assert "9,000 (8,000 … 12 k)" in text
    assert "1 of 2 aims that were measured are met." in text
    assert "not measured: `--only many`" in text
    assert "## The Dapr door" not in text.replace("### The Dapr door", "")


@pytest.mark.parametrize(
    ("values", "at_least", "verdict"),
    [
        ([9.0, 11.0, 12.0], True, MET),
        ([9.0, 9.5, 12.0], True, MISSED),
        ([9.0, 10.0, 12.0], False, MET),
        ([11.0], False, MISSED),
    ],
)
def test_the_median_decides_about_an_aim(values: list[float], at_least: bool, verdict: str) -> None:
    assert Aim("schedule", "x", "x", 10, at_least=at_least).row(figures(x=values))[-1] == verdict


def test_one_early_message_is_one_too_many() -> None:
    early = next(aim for aims in AIMS.values() for aim in aims if aim.what == "early")
    assert early.row(figures(early=[0.0, 0.0, 0.0]))[-1] == MET
    assert early.row(figures(early=[0.0, 0.0, 1.0]))[-1] == MISSED


@pytest.mark.parametrize(("beside", "verdict"), [(2.9, MET), (3.1, MISSED)])
def test_lateness_with_many_pending_is_compared_with_that_of_none(beside: float, verdict: str) -> None:
    aim = Aim("waiting", "x", "beside", 1, near="alone")
    assert aim.row(figures(beside=[beside], alone=[2.0]))[-1] == verdict


def test_every_aim_belongs_to_a_part_and_is_reached_by_the_normal_size() -> None:
    for aim in (aim for aims in AIMS.values() for aim in aims):
        assert aim.part in NAMES
    assert {"10000", "100000"} == {str(count) for count in NORMAL.bursts}
    assert (NORMAL.pending, NORMAL.waiting, NORMAL.many) == (10_000_000, 10_000_000, 100_000_000)
    assert NORMAL.repeats >= 3
    assert NORMAL.waiting_turns >= 5


def test_every_command_by_name_has_an_aim_by_the_same_rule() -> None:
    found = {aim.what.split()[2]: aim for aim in AIMS["Clients"] if aim.part == "names"}
    assert set(found) == {"get", "cancel", "restart", "send", "keep", "replace"} <= set(OPERATIONS)
    for what, aim in found.items():
        few, many = f"names_few_{what}_p50", f"names_many_{what}_p50"
        assert aim.row(figures(**{few: [500.0], many: [599.0]}))[-1] == MET
        assert aim.row(figures(**{few: [500.0], many: [601.0]}))[-1] == MISSED
        assert aim.row(figures(**{few: [2000.0], many: [2199.0]}))[-1] == MET


def test_every_part_has_its_section_of_the_report() -> None:
    assert set(report.SECTIONS) == set(NAMES)
    for part in PARTS:
        for plan in SIZES.values():
            # Nothing was measured, and still every table can be written.
            assert report.write([result(part.name, Figures(), plan)], [])


def test_plots_are_whole_and_show_what_was_measured() -> None:
    both = figures(single=[10_000.0, 9_000.0, 12_000.0], ndjson=[2e5], arrow=[1e6])
    both.add("Redis ZSET, always", "single", 30_000)
    drawn = plots.draw([result("schedule", both)])
    assert set(drawn) == {"aims.svg", "schedule-single.svg", "schedule-batched.svg"}
    texts = [node.text for node in ElementTree.fromstring(drawn["schedule-single.svg"]).iter() if node.text]
    assert "Redis ZSET, always" in texts
    assert "30 k" in texts


def test_turns_and_skips_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run("schedule", replace(NORMAL, repeats=2), tmp_path, peers=False)
    assert list(run.turns()) == [1, 2]
    run.skip("Redis", "not here")
    assert run.figures.skipped == {"Redis": "not here"}
    assert "turn 2 of 2" in capsys.readouterr().err
    with run.place() as place:
        assert place.is_dir()
    assert not place.exists()


def ack(tag: int, several: bool = False, method: int = 80) -> bytes:
    return struct.pack("!BHI", 1, 1, 13) + struct.pack("!HHQB", 60, method, tag, several) + b"\xce"


def test_rabbitmq_confirms_one_by_one_and_many_by_one() -> None:
    one_by_one = Confirmed(2)
    assert not one_by_one.feed(ack(2))
    assert one_by_one.feed(ack(1))
    together = Confirmed(3)
    assert not together.feed(ack(2, several=True)[:-4])
    assert not together.feed(ack(2, several=True)[-4:])
    assert together.feed(ack(3))
    # The next three have the tags after these.
    assert not together.feed(ack(5, several=True))
    assert together.feed(ack(6))


def test_a_publish_that_rabbitmq_refuses_is_an_error() -> None:
    with pytest.raises(Refused):
        Confirmed(repeat(1)).feed(ack(1, method=120))


def test_a_publish_is_three_frames() -> None:
    frames = publish("queue", 1_500, b"body")
    kinds = []
    while frames:
        kind, _, size = struct.unpack_from("!BHI", frames)
        kinds.append((kind, frames[7 : 7 + size]))
        frames = frames[8 + size :]
    assert [kind for kind, _ in kinds] == [1, 2, 3]
    assert kinds[1][1].endswith(b"\x04" + b"1500")
    assert kinds[2][1] == b"body"


def stored(number: int) -> bytes:
    answer = b'{"stream":"bench", "seq":%d}' % number
    return b"MSG answers.0 1 %d\r\n%b\r\n" % (len(answer), answer)


def test_nats_answers_are_counted_whole_and_byte_by_byte() -> None:
    several = nats.Answers(iter([2, 1]))
    data = stored(1) + b"PING\r\n" + stored(2)
    assert [several.feed(data[at : at + 1]) for at in range(len(data))] == [False] * (len(data) - 1) + [True]
    assert several.feed(stored(3))


@pytest.mark.parametrize(
    "answer",
    [
        b'MSG answers.0 1 46\r\n{"error":{"code":400},"stream":"bench","seq":0}\r\n',
        b"HMSG answers.0 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n",
        b"-ERR 'Unknown Protocol Operation'\r\n",
        stored(1) + b"garbage\r\n",
    ],
)
def test_what_nats_refuses_is_an_error(answer: bytes) -> None:
    with pytest.raises(Refused):
        nats.Answers(1).feed(answer)


def test_a_schedule_of_nats_says_its_sizes() -> None:
    line, _, rest = nats.publish(b"answers.3", b"1.3.9", 1_700_000_000.25, b"body").partition(b"\r\n")
    *words, head, whole = line.split()
    assert words == [b"HPUB", b"later.1.3.9", b"answers.3"]
    assert rest[: int(head)].endswith(b"\r\n\r\n")
    assert b"Nats-Schedule: @at 2023-11-14T22:13:20.250+00:00\r\n" in rest
    assert rest[int(head) : int(whole)] == b"body"
    assert rest[int(whole) :] == b"\r\n"


def test_a_connection_sends_its_own_requests_where_each_has_some() -> None:
    class Line:
        def feed(self, data: bytes) -> bool:
            return data.endswith(b"\n")

    pairs = [socket.socketpair() for _ in range(2)]
    came: list[list[bytes]] = [[], []]

    def answer(lane: int) -> None:
        with pairs[lane][1] as end:
            while data := end.recv(100):
                came[lane].append(data)
                end.sendall(b"done\n")

    servers = [Thread(target=answer, args=(lane,)) for lane in range(2)]
    for server in servers:
        server.start()
    own = [iter([b"a", b"b"]), iter([b"c"])]
    assert drive([ours for ours, _ in pairs], own, Line).replies == 3
    for server in servers:
        server.join()
    assert came == [[b"a", b"b"], [b"c"]]
