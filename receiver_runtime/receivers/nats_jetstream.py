"""The receiver of a ``NatsJetStream`` source. Importing this needs the client; the registry does it when one is made.

Owns the reader of each ``on_start``, which owns a connection and its thread (``nats_reader``).
"""

from __future__ import annotations

import threading
from typing import ClassVar

from receiver_runtime.receiver import Receiver
from receiver_runtime.sources.base import SourceError, SourceRule
from receiver_runtime.sources.nats_jetstream import NatsJetStream

try:
    from receiver_runtime.receivers.nats_reader import KnownConsumer, NatsReader
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "nats":
        raise
    raise SourceError(
        "nats_jetstream: the package nats-py is not installed here: run `pip install 'forebay[nats]'` where the agent "
        "runs, in the environment of `forebay agent`"
    ) from error


class NatsJetStreamReceiver(Receiver):
    """Messages, acknowledged when they are registered. See ``NatsJetStream``."""

    columns: ClassVar[tuple[tuple[str, str], ...]] = NatsJetStream.columns
    source_rule: ClassVar[SourceRule | None] = SourceRule.SENT_AGAIN

    def __init__(self, source: NatsJetStream) -> None:
        super().__init__()
        self._source = source
        self._known = KnownConsumer()
        self._lock = threading.Lock()
        self._reader: NatsReader | None = None

    def on_start(self) -> None:
        """Start a reader."""
        reader = NatsReader(self, self._source, self._known)
        with self._lock:
            # Said before on_stop is called: nobody would end this one.
            if not self.is_stopped():
                self._reader = reader
                reader.start()

    def on_stop(self) -> None:
        """End it; returns when what was read is registered and acknowledged, and the connection closed. Safe twice."""
        with self._lock:
            reader, self._reader = self._reader, None
        if reader is not None:
            reader.stop()
