"""The receiver of a ``RedisStreams`` source. Importing this needs the client; the registry does it when one is made.

Owns the reader of each ``on_start``, which owns a connection and its thread (``redis_reader``).
"""

from __future__ import annotations

import threading
from typing import ClassVar

from receiver_runtime.receiver import Receiver
from receiver_runtime.sources.base import SourceError, SourceRule
from receiver_runtime.sources.redis_streams import RedisStreams

try:
    from receiver_runtime.receivers.redis_reader import RedisReader
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "redis":
        raise
    raise SourceError(
        "redis_streams: the package redis is not installed here: run `pip install 'forebay[redis]'` where the agent "
        "runs, in the environment of `forebay agent`"
    ) from error


class RedisStreamsReceiver(Receiver):
    """Entries, acknowledged when they are registered. See ``RedisStreams``."""

    columns: ClassVar[tuple[tuple[str, str], ...]] = RedisStreams.columns
    source_rule: ClassVar[SourceRule | None] = SourceRule.SENT_AGAIN

    def __init__(self, source: RedisStreams) -> None:
        super().__init__()
        self._source = source
        # Groups that were there once: one that is gone was deleted with its stream.
        self._known_groups: set[str] = set()
        self._lock = threading.Lock()
        self._reader: RedisReader | None = None

    def on_start(self) -> None:
        """Start a reader."""
        reader = RedisReader(self, self._source, self._known_groups)
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
