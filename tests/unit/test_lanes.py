"""Lanes: the door can be read from them, and owners are spread."""

from itertools import product

import numpy as np

from tarry.ledger.columns import coded, holders_of, lanes_of
from tarry.ledger.lanes import DOORS, doors_of, lane_of


def test_lanes_spread_owners_and_fit_their_column() -> None:
    lanes = {lane_of("t/n", f"owner-{n}", DOORS[-1]) for n in range(1000)}
    assert len(lanes) > 900
    assert all(0 <= lane < 65536 for lane in lanes)


def test_an_owner_has_another_lane_in_another_namespace() -> None:
    assert lane_of("t/n", "ann", "http") != lane_of("t/m", "ann", "http")


def test_the_rows_of_a_batch_have_the_lanes_of_their_holders() -> None:
    pairs = list(product(["a/x", "b/x", "b/y"], ["", "ann", "bob"])) * 2
    namespaces, owners = coded([one for one, _ in pairs]), coded([one for _, one in pairs])
    lanes = lanes_of(holders_of(namespaces, owners), "bulk")
    assert lanes.tolist() == [lane_of(*pair, "bulk") for pair in pairs]


def test_the_door_is_read_back() -> None:
    lanes = np.array([lane_of("t/n", "ann", door) for door in (*DOORS, "unheard of")], np.uint16)
    assert doors_of(lanes).tolist() == [*range(len(DOORS)), 0]


def test_a_door_of_a_later_version_counts_as_another() -> None:
    assert doors_of(np.array([7 << 13], np.int32)).tolist() == [0]
