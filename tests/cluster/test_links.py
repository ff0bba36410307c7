"""Faults of a link reach the connections through it: the nemesis is only worth what its faults are."""

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.cluster.links import Link, Network


def _echo(listening: socket.socket) -> None:
    """Send back what comes, on one connection after another."""
    while True:
        try:
            connection, _ = listening.accept()
        except OSError:
            return
        with connection, contextlib.suppress(ConnectionError):
            while data := connection.recv(1000):
                connection.sendall(data)


@pytest.fixture
def link() -> Iterator[Link]:
    """A link to an echo."""
    with socket.create_server(("127.0.0.1", 0)) as listening, Network() as network:
        threading.Thread(target=_echo, args=[listening], daemon=True).start()
        yield Link(network, listening.getsockname()[1])
        listening.shutdown(socket.SHUT_RDWR)


def _connect(link: Link) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", link.port))
    connection.settimeout(10)
    return connection


def _hears_nothing(connection: socket.socket) -> bool:
    connection.settimeout(0.2)
    try:
        connection.recv(1)
    except TimeoutError:
        return True
    finally:
        connection.settimeout(10)
    return False


def test_a_link_passes_both_ways_and_the_end_of_each(link: Link) -> None:
    with _connect(link) as connection:
        connection.sendall(b"there and back")
        assert connection.recv(100) == b"there and back"
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(100) == b""


def test_what_was_sent_over_a_cut_link_comes_once_it_is_healed(link: Link) -> None:
    with _connect(link) as connection:
        connection.sendall(b"a")
        assert connection.recv(1) == b"a"
        link.cut()
        connection.sendall(b"b")
        assert _hears_nothing(connection)
        link.heal()
        assert connection.recv(1) == b"b"


def test_a_new_connection_over_a_cut_link_is_answered_once_it_is_healed(link: Link) -> None:
    link.cut()
    with _connect(link) as connection:
        connection.sendall(b"a")
        assert _hears_nothing(connection)
        link.heal()
        assert connection.recv(1) == b"a"


def test_a_reset_breaks_what_is_there_and_nothing_after_it(link: Link) -> None:
    with _connect(link) as connection:
        connection.sendall(b"a")
        assert connection.recv(1) == b"a"
        link.reset()
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    with _connect(link) as connection:
        connection.sendall(b"b")
        assert connection.recv(1) == b"b"


def test_a_port_behind_which_nobody_listens_breaks_off() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, Network() as network:
        link = Link(network, taken.getsockname()[1])
        taken.close()
        with _connect(link) as connection, pytest.raises(ConnectionResetError):
            connection.recv(1)


def test_a_muted_link_holds_answers_until_it_speaks_again(link: Link) -> None:
    with _connect(link) as connection:
        connection.sendall(b"1")
        assert connection.recv(1) == b"1"
        link.mute()
        connection.sendall(b"2")
        assert _hears_nothing(connection)
        link.unmute()
        assert connection.recv(1) == b"2"
