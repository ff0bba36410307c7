import importlib

import pytest

from tarry.core.time.times import go_duration_ms
from tarry.outlets.dapr.component import kinds
from tarry.outlets.dapr.errors import LibraryMissing, Misconfigured, UnknownKind
from tarry.outlets.dapr.events import event_id
from tarry.outlets.dapr.properties import Properties, ttl_ms_of
from tests.unit.broker_kit import made


def test_every_module_of_the_brokers_is_a_kind() -> None:
    assert {"pubsub.in-memory", "pubsub.tarry"} <= set(kinds())


def test_an_unknown_kind_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(UnknownKind, match=r"pubsub\.carrier-pigeon is not one of .*pubsub\.in-memory"):
        made("pubsub.carrier-pigeon")
    with pytest.raises(UnknownKind):
        made("state.redis")


def test_a_missing_library_is_named_with_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def without(name: str, package: str | None = None) -> object:
        if name.endswith("brokers.in_memory"):
            raise ModuleNotFoundError("No module named 'pigeon'", name="pigeon")
        return real(name, package)

    monkeypatch.setattr("tarry.outlets.dapr.component.import_module", without)
    with pytest.raises(LibraryMissing, match=r"needs the library pigeon.*pip install 'tarry\[in-memory\]'"):
        made("pubsub.in-memory")


def test_an_error_in_a_module_of_our_own_is_not_taken_for_a_missing_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = importlib.import_module

    def broken(name: str, package: str | None = None) -> object:
        if name.endswith("brokers.in_memory"):
            raise ModuleNotFoundError("No module named 'tarry.gone'", name="tarry.gone")
        return real(name, package)

    monkeypatch.setattr("tarry.outlets.dapr.component.import_module", broken)
    with pytest.raises(ModuleNotFoundError):
        made("pubsub.in-memory")


def test_the_case_of_a_name_does_not_matter() -> None:
    properties = Properties({"redisHost": "a:1", "EMPTY": ""})
    assert properties.text("REDISHOST") == properties["redishost"] == "a:1"
    assert "RedisHost" in properties
    assert "other" not in properties
    assert properties.text("empty", "b") == "b"
    assert list(properties) == ["redisHost", "EMPTY"]


@pytest.mark.parametrize("text", ["true", "True", "1", "yes", "Y", "on", "t"])
def test_true_in_all_spellings(text: str) -> None:
    assert Properties({"flag": text}).flag("flag")


@pytest.mark.parametrize("text", ["false", "No", "0", "off", "F", ""])
def test_false_in_all_spellings(text: str) -> None:
    assert not Properties({"flag": text}).flag("flag")


def test_what_is_neither_true_nor_false_is_refused() -> None:
    with pytest.raises(Misconfigured, match="flag: 'maybe' is neither true nor false"):
        Properties({"flag": "maybe"}).flag("flag")


@pytest.mark.parametrize("text", ["x", "1.5", "-1", "11", "1e3", "９"])
def test_a_number_out_of_bounds_or_none_is_refused(text: str) -> None:
    with pytest.raises(Misconfigured, match="count: "):
        Properties({"count": text}).number("count", 5, least=0, most=10)


def test_numbers_choices_and_needed_fields() -> None:
    properties = Properties({"count": "7", "mode": "Parallel"})
    assert properties.number("count", 5) == 7
    assert properties.number("other", 5) == 5
    assert properties.one_of("mode", ("single", "parallel"), "single") == "parallel"
    with pytest.raises(Misconfigured, match="mode: 'Parallel' is not one of a, b"):
        properties.one_of("mode", ("a", "b"), "a")
    with pytest.raises(Misconfigured, match="host: is missing"):
        properties.needed("host")


@pytest.mark.parametrize(
    ("text", "ms"),
    [("0", 0), ("1s", 1000), ("1m30s", 90_000), ("1.5h", 5_400_000), ("500ms", 500), ("1ns", 1), (".5s", 500),
     ("-2s", -2000), ("+1s", 1000), ("1us", 1)],
)  # fmt: skip
def test_durations_as_go_writes_them(text: str, ms: int) -> None:
    assert go_duration_ms(text) == ms


@pytest.mark.parametrize("text", ["", "s", "1", "1x", "1s2", "1 s", "--1s", "1,5s", "1s" * 40])
def test_what_is_no_duration(text: str) -> None:
    assert go_duration_ms(text) is None


def test_a_duration_field() -> None:
    properties = Properties({"wait": "3s", "bare": "15", "bad": "soon", "less": "-1s"})
    assert properties.duration_ms("wait", 1) == 3000
    assert properties.duration_ms("bare", 1, bare_ms=1000) == 15_000
    assert properties.duration_ms("other", 7) == 7
    for field in ("bare", "bad", "less"):
        with pytest.raises(Misconfigured, match=f"{field}: .* is not a duration"):
            properties.duration_ms(field, 1)


def test_the_id_of_an_event_is_a_text() -> None:
    assert event_id(b'{"id":"a","other":1}') == "a"
    for none in (b"", b"raw", b"[]", b"{}", b'{"id":""}', b'{"id":5}', b'{"id":null}', b'{"id":["a"]}'):
        assert event_id(none) is None


def test_a_time_to_live() -> None:
    assert ttl_ms_of({"ttlInSeconds": "60"}) == 60_000
    for wrong in ("0", "-1", "x", "1.5", "9" * 30):
        assert ttl_ms_of({"ttlInSeconds": wrong}) is None
    assert ttl_ms_of({}) is None
