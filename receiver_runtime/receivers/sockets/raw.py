"""Receives length-prefixed records of bytes over TCP (X02), from a server or from any number of senders."""

from __future__ import annotations

from typing import ClassVar

from receiver_runtime.receivers.sockets.length_prefixed import LengthPrefixedFraming
from receiver_runtime.receivers.sockets.raw_declaration import RawSocket
from receiver_runtime.receivers.sockets.receiver import SocketReceiver


class RawSocketReceiver(SocketReceiver):
    """Receive the records of a ``RawSocket`` source. At most once: a sender on a plain socket sends nothing again."""

    columns: ClassVar[tuple[tuple[str, str], ...]] = RawSocket.columns

    def __init__(self, source: RawSocket) -> None:
        super().__init__(source, lambda: LengthPrefixedFraming(max_record_bytes=source.max_record_bytes))
