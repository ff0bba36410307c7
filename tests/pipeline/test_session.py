"""The driver on this machine: its ports are for nobody else, not even for other users here."""

import socket
import struct

from pyspark.sql import SparkSession

RPC_REQUEST = 3
ASKED = b"work for me"


def test_the_ports_of_a_local_driver_ask_for_a_secret(spark: SparkSession) -> None:
    settings = dict(spark.sparkContext.getConf().getAll())
    assert "spark.authenticate.secret" not in settings
    # A request as Spark's own processes send it: length, kind, number, length of the body, body.
    head = struct.pack(">BQI", RPC_REQUEST, 1, len(ASKED))
    with socket.create_connection(("127.0.0.1", int(settings["spark.driver.port"])), timeout=60) as stranger:
        stranger.sendall(struct.pack(">Q", 8 + len(head) + len(ASKED)) + head + ASKED)
        answer = stranger.recv(1 << 16)
    assert b"SaslMessage" in answer, answer[:500]
    # And work is done all the same, by Python workers too.
    assert spark.sparkContext.parallelize(range(10), 2).map(lambda one: one + 1).sum() == 55
