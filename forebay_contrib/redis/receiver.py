"""Define the receiver of a ``RedisStreams`` source. Importing this needs the client; the registry does it when needed.

Owns the reader of each ``on_start``, which owns a connection and its thread (``reader``).
"""

from __future__ import annotations

from typing import ClassVar

from forebay_contrib.redis.declaration import RedisStreams
from receiver_runtime.receivers.missing_client import missing_client
from receiver_runtime.receivers.run_receiver import RunReceiver

try:
    from forebay_contrib.redis.reader import RedisReader
except ModuleNotFoundError as error:
    raise missing_client(error, "redis_streams", "redis", "redis", "redis") from error


class RedisStreamsReceiver(RunReceiver):
    """Receives entries, and acknowledges them when they are registered. See ``RedisStreams``."""

    columns: ClassVar[tuple[tuple[str, str], ...]] = RedisStreams.columns

    def __init__(self, source: RedisStreams) -> None:
        super().__init__()
        self._source = source

    def make_run(self) -> RedisReader:
        """Return a reader.

        Its ``stop`` returns when what was read is registered and acknowledged, and the connection is closed.
        """
        return RedisReader(self, self._source)
