"""Receives text records over TCP (X01), from a server or from any number of senders."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from receiver_runtime.receivers.lines import LineFraming
from receiver_runtime.receivers.sockets.joined_text import JoinedTextFraming
from receiver_runtime.receivers.sockets.marked_text import MarkedTextFraming
from receiver_runtime.receivers.sockets.receiver import SocketReceiver
from receiver_runtime.receivers.sockets.text_declaration import SocketText
from receiver_runtime.sources.source import SourceError

if TYPE_CHECKING:
    from receiver_runtime.receivers.framing import Framing


class SocketTextReceiver(SocketReceiver):
    """Receive the records of a ``SocketText`` source. At most once: a sender on a plain socket sends nothing again."""

    columns: ClassVar[tuple[tuple[str, str], ...]] = SocketText.columns

    def __init__(self, source: SocketText) -> None:
        # Found before it begins, as any other fault of the declaration.
        _framing_of(source)
        super().__init__(source, lambda: _framing_of(source))


def _framing_of(source: SocketText) -> Framing:
    """Return what makes records of the source's text. Raises SourceError: its pattern is not RE2's."""
    # Other encodings and delimiters are declared for text of another kind.
    is_marked = source.encoding == "utf-8" and source.delimiter_bytes == b"\n"
    framing = (MarkedTextFraming if is_marked else LineFraming)(
        delimiter=source.delimiter_bytes,
        encoding=source.encoding,
        one_byte=source.one_byte,
        max_record_bytes=source.max_record_bytes,
    )
    if source.multiline is None:
        return framing
    try:
        return JoinedTextFraming(
            framing,
            source.multiline,
            max_record_bytes=source.max_record_bytes,
            most_connections=source.max_connections,
        )
    except ValueError as error:
        raise SourceError(str(error)) from error
