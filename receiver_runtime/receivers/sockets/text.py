"""Receives text records over TCP (X01), from a server or from any number of senders."""

from __future__ import annotations

from typing import ClassVar

from receiver_runtime.receivers.lines import LineFraming
from receiver_runtime.receivers.sockets.marked_text import MarkedTextFraming
from receiver_runtime.receivers.sockets.receiver import SocketReceiver
from receiver_runtime.receivers.sockets.text_declaration import SocketText


class SocketTextReceiver(SocketReceiver):
    """Receive the records of a ``SocketText`` source. At most once: a sender on a plain socket sends nothing again."""

    columns: ClassVar[tuple[tuple[str, str], ...]] = SocketText.columns

    def __init__(self, source: SocketText) -> None:
        # Other encodings and delimiters are declared for text of another kind.
        is_marked = source.encoding == "utf-8" and source.delimiter_bytes == b"\n"
        framing = (MarkedTextFraming if is_marked else LineFraming)(
            delimiter=source.delimiter_bytes,
            encoding=source.encoding,
            one_byte=source.one_byte,
            max_record_bytes=source.max_record_bytes,
        )
        super().__init__(source, framing)
