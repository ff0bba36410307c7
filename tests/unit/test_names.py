import pytest

from tarry.core.errors import Invalid
from tarry.core.names import (
    check_name,
    parse_destination,
    parse_namespace,
    parse_topic,
    partition_number,
    unpartitioned,
)


@pytest.mark.parametrize(
    ("given", "full"),
    [
        ("orders", "persistent://public/default/orders"),
        ("acme/eu/orders", "persistent://acme/eu/orders"),
        ("persistent://acme/eu/orders", "persistent://acme/eu/orders"),
        ("persistent://acme/eu/ORDERS v2 (é)", "persistent://acme/eu/ORDERS v2 (é)"),
        ("a:b", "persistent://public/default/a:b"),
    ],
)
def test_topic_names(given: str, full: str) -> None:
    name = parse_topic(given)
    assert name.full == full
    assert parse_topic(name.full) == name


@pytest.mark.parametrize("name", ["mailto:a@b", "Hello World", "9:30", "é: ü"])
def test_what_was_meant_instead_of_a_destination_is_one(name: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse_destination(name)
    _, _, meant = refused.value.reason.partition("did you mean the topic ")
    assert parse_destination(meant.removesuffix("?")) == parse_topic(name)


@pytest.mark.parametrize("name", ["a:/b", "a b\n", "x " * 200, "a/b", "acme/eu/orders/new"])
def test_nothing_is_meant_that_would_be_refused_too(name: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse_destination(name)
    assert "did you mean" not in refused.value.reason


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("example.org/hook", "https://example.org/hook"),
        ("https//example.org/x?y=1", "https://example.org/x?y=1"),
        ("http//10.0.0.1:8080/x", "http://10.0.0.1:8080/x"),
        ("//example.org/x", "https://example.org/x"),
        ("localhost:9000/hook", "https://localhost:9000/hook"),
    ],
)
def test_an_address_without_its_scheme_is_named_with_it(name: str, meant: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse_destination(name)
    assert refused.value.reason.endswith(f"; did you mean {meant}?")


def test_the_namespace_of_a_topic() -> None:
    assert parse_topic("acme/eu/orders").namespace_name == "acme/eu"


@pytest.mark.parametrize(
    "bad",
    [
        "", "a/b", "a/b/c/d", "persistent://orders", "persistent://a/b", "non-persistent://a/b/c", "://a/b/c",
        "http://host/path", "a//c", "/a/b", "a/b/", "a b/c/d", "a/b!/c", "a\nb", "a\x00b", "a\x7fb", "é/b/c",
        "x" * 256, "é" * 128, f"{'t' * 256}/n/t", "\ud800", "persistent://",
    ],
)  # fmt: skip
def test_bad_topic_names_name_the_field(bad: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse_topic(bad, "destination")
    assert caught.value.field == "destination"


@pytest.mark.parametrize("name", ["x" * 255, "é" * 127, "s p a c e", "a.b-c_d", "😀"])
def test_good_names(name: str) -> None:
    check_name(name, "subscription")
    assert parse_topic(name).topic == name


@pytest.mark.parametrize("name", ["public/default", "a/b", "a.b=c:d-e_f/1"])
def test_good_namespaces(name: str) -> None:
    assert parse_namespace(name) == name


@pytest.mark.parametrize("name", ["", "a", "a/b/c", "/b", "a/", "a b/c", "a/é", "x" * 256 + "/b", "a\n/b"])
def test_bad_namespaces(name: str) -> None:
    with pytest.raises(Invalid):
        parse_namespace(name)


@pytest.mark.parametrize(
    ("name", "topic", "number"),
    [
        ("t-partition-0", "t", 0),
        ("t-partition-12", "t", 12),
        ("t-partition-1-partition-2", "t-partition-1", 2),
        ("t", "t", -1),
        ("t-partition-", "t-partition-", -1),
        ("t-partition-x", "t-partition-x", -1),
        # A digit for `str.isdigit`, and no number for `int`.
        ("t-partition-²", "t-partition-²", -1),
    ],
)
def test_partitions_and_the_topics_that_they_are_of(name: str, topic: str, number: int) -> None:
    assert (unpartitioned(name), partition_number(name)) == (topic, number)
