"""Define the receiver of a ``NatsJetStream`` source. Importing this needs the client; the registry does it when needed.

Owns the reader of each ``on_start``, which owns a connection and its thread (``reader``).
"""

from __future__ import annotations

from typing import ClassVar

from forebay_contrib.nats.declaration import NatsJetStream
from forebay_contrib.nats.session import KnownConsumer
from receiver_runtime.receivers.missing_client import missing_client
from receiver_runtime.receivers.run_receiver import RunReceiver

try:
    from forebay_contrib.nats.reader import NatsReader
except ModuleNotFoundError as error:
    raise missing_client(error, "nats_jetstream", "nats-py", "nats", "nats") from error


class NatsJetStreamReceiver(RunReceiver):
    """Receives messages, and acknowledges them when they are registered. See ``NatsJetStream``."""

    columns: ClassVar[tuple[tuple[str, str], ...]] = NatsJetStream.columns

    def __init__(self, source: NatsJetStream) -> None:
        super().__init__()
        self._source = source
        self._known = KnownConsumer()

    def make_run(self) -> NatsReader:
        """Return a reader.

        Its ``stop`` returns when what was read is registered and acknowledged, and the connection is closed.
        """
        return NatsReader(self, self._source, self._known)
