"""The receivers of an ``Amqp`` source. Importing this needs the client; the registry does it when one is made.

Owns the reader of each ``on_start``, which owns a connection and its threads.
"""

from __future__ import annotations

import threading
from typing import ClassVar

from receiver_runtime.receiver import Receiver
from receiver_runtime.sources.amqp import Amqp
from receiver_runtime.sources.base import SourceError, SourceRule

try:
    from receiver_runtime.receivers.amqp_reader import AmqpReader
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "pika":
        raise
    raise SourceError(
        "amqp: the package pika is not installed here: run `pip install 'forebay[amqp]'` where the agent runs, in the "
        "environment of `forebay agent`"
    ) from error


class AmqpReceiver(Receiver):
    """Messages that are acknowledged when they are registered. See ``Amqp``."""

    columns: ClassVar[tuple[tuple[str, str], ...]] = Amqp.columns
    source_rule: ClassVar[SourceRule | None] = SourceRule.SENT_AGAIN

    def __init__(self, source: Amqp) -> None:
        super().__init__()
        self._source = source
        self._lock = threading.Lock()
        self._reader: AmqpReader | None = None

    def on_start(self) -> None:
        """Start a reader."""
        reader = AmqpReader(self, self._source)
        with self._lock:
            # Said before on_stop is called: nobody would end this one.
            if not self.is_stopped():
                self._reader = reader
                reader.start()

    def on_stop(self) -> None:
        """End it; returns when all that was taken is handed on, and the connection is closed. Safe twice."""
        with self._lock:
            reader, self._reader = self._reader, None
        if reader is not None:
            reader.stop()
