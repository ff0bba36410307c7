"""Lanes: the door can be read from them, and owners are spread."""

import numpy as np

from tarry.core.lanes import DOORS, doors_of, lane_of


def test_lanes_spread_owners_and_fit_their_column() -> None:
    lanes = {lane_of(f"owner-{n}", DOORS[-1]) for n in range(1000)}
    assert len(lanes) > 900
    assert all(0 <= lane < 65536 for lane in lanes)


def test_the_door_is_read_back() -> None:
    lanes = np.array([lane_of("ann", door) for door in (*DOORS, "unheard of")], np.uint16)
    assert doors_of(lanes).tolist() == [*range(len(DOORS)), 0]


def test_a_door_of_a_later_version_counts_as_another() -> None:
    assert doors_of(np.array([7 << 13], np.int32)).tolist() == [0]
