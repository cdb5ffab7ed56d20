"""The receiver of a ``RedisStreams`` source. Importing this needs the client; the registry does it when one is made.

Owns the reader of each ``on_start``, which owns a connection and its thread (``reader``).
"""

from __future__ import annotations

from typing import ClassVar

from receiver_runtime.receivers.missing_client import missing_client
from receiver_runtime.receivers.run_receiver import RunReceiver
from receiver_runtime.sources.redis_streams import RedisStreams

try:
    from receiver_runtime.receivers.redis.reader import RedisReader
except ModuleNotFoundError as error:
    raise missing_client(error, "redis_streams", "redis", "redis", "redis") from error


class RedisStreamsReceiver(RunReceiver):
    """Entries, acknowledged when they are registered. See ``RedisStreams``."""

    columns: ClassVar[tuple[tuple[str, str], ...]] = RedisStreams.columns

    def __init__(self, source: RedisStreams) -> None:
        super().__init__()
        self._source = source
        # Groups that were there once: one that is gone was deleted with its stream.
        self._known_groups: set[str] = set()

    def make_run(self) -> RedisReader:
        """Its stop returns when what was read is registered and acknowledged, and the connection closed."""
        return RedisReader(self, self._source, self._known_groups)
