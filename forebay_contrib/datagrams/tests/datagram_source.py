"""Datagrams for the conformance suite: a sender over UDP, which sends no more than the kernel keeps.

Its *connection* is a socket that is connected to the port of one start of a receiver: what is sent to it after that
start has ended is lost.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from forebay_contrib.datagrams.declaration import Datagrams
from tests.conformance.listener_sender import ListenerConnection, ListenerSender
from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    from collections.abc import Mapping

# Lines that are not registered yet, at most. They are in a 25th as many datagrams, for which the kernel has room also
# while no process reads.
_MOST_WAITING = 2000
_REGISTERED = sa.text("SELECT coalesce(sum(records), 0) FROM forebay.blocks WHERE receiver_id = :receiver")


class DatagramSender(ListenerSender):
    """See the module."""

    def __init__(self, database_url: str) -> None:
        self._registered_before: dict[ListenerConnection, int] = {}
        self._lost_ports: set[int] = set()
        super().__init__(database_url)

    def source(self, **changes: Any) -> Datagrams:  # noqa: ANN401  fields of the source
        return Datagrams(**{"listen": "127.0.0.1:0", **changes})

    def _numbered(self, number: int) -> bytes:
        return b"line %d" % number

    def send_odd(self) -> int:
        """Send lines of one character, of another alphabet, with blanks around, and a large one."""
        return self._send_all([b"x", "\u00fc\u20ac".encode(), b"  y\t", b"\0", b"z" * 30_000])

    def _framed(self, message: bytes) -> bytes:
        return message + b"\n"

    def _message_of(self, row: Mapping[str, Any]) -> bytes:
        value: str = row["value"]
        return value.encode()

    def _connected(self, port: int) -> socket.socket:
        if port in self._lost_ports:
            # UDP would not say that no process reads there.
            raise ConnectionRefusedError(port)
        made = socket.socket(type=socket.SOCK_DGRAM)
        made.connect(("127.0.0.1", port))
        return made

    def _lose(self, receiver: int) -> None:
        self._lost_ports.add(self._open[receiver].port)
        super()._lose(receiver)

    def _may_send(self, receiver: int, connection: ListenerConnection) -> bool:
        with connect(self._engine) as asking:
            registered = int(asking.execute(_REGISTERED, {"receiver": receiver}).scalar_one())
        before = self._registered_before.setdefault(connection, registered)
        return len(connection.messages) - (registered - before) < _MOST_WAITING
