"""A consumer that tries again with growing delays, with an unmodified Pulsar client: a failed message comes back 5 s, 30 s, 5 min later.

python retry.py send "order 17"
python retry.py work
"""

import os
import sys
from datetime import timedelta

import pulsar

SERVICE_URL = os.environ.get("PULSAR_URL", "pulsar://127.0.0.1:6650")
DELAYS_MS = [int(delay) for delay in os.environ.get("DELAYS_MS", "5000,30000,300000").split(",")]
TOPIC, DEAD_LETTERS = "orders", "orders-dead"


def handle(body: str, attempt: int) -> None:
    """Do the work; an order called "fails twice" fails twice."""
    if body == "fails always" or (body == "fails twice" and attempt < 3):
        raise RuntimeError("the warehouse does not answer")
    print(f"done: {body} (attempt {attempt})", flush=True)


def work(client: pulsar.Client) -> None:
    """Handle messages; one that fails is published again with a delay before the failed one is acknowledged."""
    consumer = client.subscribe(
        TOPIC,
        "shop",
        consumer_type=pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
    )
    again = client.create_producer(TOPIC)
    dead = client.create_producer(DEAD_LETTERS)
    while True:
        message = consumer.receive()
        attempt = int(message.properties().get("attempt", "1"))
        body = message.data().decode()
        try:
            handle(body, attempt)
        except Exception as error:
            if attempt > len(DELAYS_MS):
                dead.send(message.data(), properties={"error": str(error)})
                print(f"gave up: {body}", flush=True)
            else:
                properties = {"attempt": str(attempt + 1)}
                wait = timedelta(milliseconds=DELAYS_MS[attempt - 1])
                again.send(message.data(), properties=properties, deliver_after=wait)
        # In this order nothing is lost; a crash between the two gives the message once more.
        consumer.acknowledge(message)


def send(client: pulsar.Client, body: str) -> None:
    """Publish one order."""
    client.create_producer(TOPIC).send(body.encode())


if __name__ == "__main__":
    connection = pulsar.Client(SERVICE_URL)
    try:
        if sys.argv[1] == "work":
            work(connection)
        else:
            send(connection, sys.argv[2])
    finally:
        connection.close()
