"""Records of bytes, each with its length before it, on a TCP connection (the original's ``rawSocketStream``, X02)."""

from __future__ import annotations

from typing import ClassVar, Literal

from receiver_runtime.sources.tcp import TcpSource


class RawSocket(TcpSource):
    """Reads records that are each preceded by their length: 4 bytes, big-endian; one column, ``value: binary``.

    A length of 0 is a record without bytes. A length that is negative, or above ``max_record_bytes``, says that the
    sender speaks something else: what was read becomes a dead letter and the connection is closed; others go on.
    The arguments, and what is guaranteed (at most once), are ``TcpSource``'s.
    """

    columns: ClassVar[tuple[tuple[str, str], ...]] = (("value", "binary"),)
    receiver_class: ClassVar[str] = "receiver_runtime.receivers.sockets.raw:RawSocketReceiver"

    kind: Literal["raw_socket"] = "raw_socket"
