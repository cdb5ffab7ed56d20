"""Declare a source of length-prefixed binary records on a TCP connection (the original's ``rawSocketStream``, X02)."""

from __future__ import annotations

from typing import ClassVar, Literal

from receiver_runtime.receivers.sockets.tcp_source import TcpSource


class RawSocket(TcpSource):
    """Reads records that are each preceded by their length: 4 bytes, big-endian; one column, ``value: binary``.

    A length of 0 is a record without bytes. A length that is negative, or above ``max_record_bytes``, means that the
    sender uses another protocol: what was read becomes a dead letter and the connection is closed; other connections
    continue. The arguments and the guarantee (at most once) are ``TcpSource``'s.
    """

    columns: ClassVar[tuple[tuple[str, str], ...]] = (("value", "binary"),)
    record_column: ClassVar[str] = "value"
    receiver_class: ClassVar[str] = "receiver_runtime.receivers.sockets.raw:RawSocketReceiver"

    kind: Literal["raw_socket"] = "raw_socket"
