"""Check what the thread that reads datagrams does while it is flooded."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from receiver_runtime.receivers.framing import Cut
from receiver_runtime.receivers.sockets import datagram_listener
from receiver_runtime.receivers.sockets.datagram_listener import DatagramListener
from tests.unit.receiver_runtime.support import eventually

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from receiver_runtime.supervisor.receiver import Receiver


class Kept:
    """Stands for a receiver, and for what holds records back."""

    def __init__(self) -> None:
        self.address = ""
        self.asked = self.cut = 0
        self.errors: list[BaseException] = []

    def report_listening(self, address: str) -> None:
        self.address = address

    def report_error(self, message: str, error: BaseException) -> None:
        del message
        self.errors.append(error)

    def restart(self, message: str, error: BaseException) -> None:
        self.report_error(message, error)

    def overdue(self) -> Cut:
        self.asked += 1
        return Cut()

    def until_overdue(self) -> float | None:
        return 0.0

    def end(self, peers: Sequence[str] | None = None) -> Cut:
        del peers
        return Cut()


def test_what_is_overdue_is_stored_also_while_datagrams_never_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datagram_listener, "_READ_DATAGRAMS", 1)
    monkeypatch.setattr(datagram_listener, "_LITTLE_DATAGRAMS", 0)
    monkeypatch.setattr(datagram_listener, "_HELD_SECONDS", 0.05)
    kept = Kept()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:

        def cut(datagrams: Sequence[bytes], senders: Sequence[str]) -> Sequence[Cut]:
            del datagrams, senders
            # The next read finds more than one datagram.
            kept.cut += 1
            send()
            return []

        def send() -> None:
            host, port = kept.address.rsplit(":", 1)
            sender.sendto(b"a", (host, int(port)))

        receiver: Receiver = kept  # type: ignore[assignment]
        listener = DatagramListener(receiver, ("127.0.0.1", 0), cut, receive_buffer=2**18, holding=kept)
        listener.start()
        try:
            eventually(lambda: bool(kept.address), "the port")
            for _ in range(8):
                send()
            eventually(lambda: kept.cut > 0, "the flood")
            asked = kept.asked
            eventually(lambda: kept.asked > asked + 1, "what is overdue, in a flood")
        finally:
            listener.stop()
    assert kept.errors == []
