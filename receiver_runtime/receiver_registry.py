"""From a source's declaration to the receiver that reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from receiver_runtime.receivers.socket_text import SocketTextReceiver
from receiver_runtime.sources.base import Source, SourceError
from receiver_runtime.sources.socket_text import SocketText

if TYPE_CHECKING:
    from receiver_runtime.receiver import Receiver


def make_receiver(source: Source) -> Receiver:
    """A receiver for a source, not yet attached. Raises SourceError for a kind that nothing reads."""
    match source:
        case SocketText():
            return SocketTextReceiver(source)
        case _:
            raise SourceError(f"kind: nothing here receives from {source.kind!r}: upgrade this host's Forebay")
