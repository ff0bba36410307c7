"""Questions about the topic to brokers that do not answer all of them."""

import pytest

from tarry.cluster.inspection import topic_settings
from tarry.core.errors import Unavailable
from tests.unit.mock_brokers import mock_broker


def test_a_broker_that_names_the_topic_and_then_hangs_is_unavailable() -> None:
    with (
        mock_broker("tarry") as address,
        pytest.raises(Unavailable, match="do not tell about topic tarry: they did not answer in time"),
    ):
        topic_settings({"bootstrap.servers": address}, "tarry", within_s=0.5)
