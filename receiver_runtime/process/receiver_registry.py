"""Make the receiver that reads a source from its declaration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from receiver_runtime.sources.source import SourceError
from receiver_runtime.supervisor.receiver import Receiver

if TYPE_CHECKING:
    from receiver_runtime.sources.source import Source


def make_receiver(source: Source) -> Receiver:
    """Return a receiver for a source, not yet attached.

    Raises:
        SourceError: no receiver reads it, its client is not installed, or a user's class is missing or can't be made.
    """
    receiver_class = source.load()
    if not issubclass(receiver_class, Receiver):
        raise SourceError(f"receiver: {source.address!r} is no receiver: make it a child of forebay.receiver.Receiver")
    made = source.make_receiver()
    assert isinstance(made, Receiver)
    return made
