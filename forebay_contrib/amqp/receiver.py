"""Define the receiver of an ``Amqp`` source. Importing this needs the client; the registry does it to make a receiver.

Owns the reader of each ``on_start``, which owns a connection and its threads.
"""

from __future__ import annotations

from typing import ClassVar

from forebay_contrib.amqp.declaration import Amqp
from receiver_runtime.receivers.missing_client import missing_client
from receiver_runtime.receivers.run_receiver import RunReceiver

try:
    from forebay_contrib.amqp.reader import AmqpReader
except ModuleNotFoundError as error:
    raise missing_client(error, "amqp", "pika", "amqp", "pika") from error


class AmqpReceiver(RunReceiver):
    """Receives messages, and acknowledges them when they are registered. See ``Amqp``."""

    columns: ClassVar[tuple[tuple[str, str], ...]] = Amqp.columns

    def __init__(self, source: Amqp) -> None:
        super().__init__()
        self._source = source

    def make_run(self) -> AmqpReader:
        """Return a reader. Its ``stop`` returns when what was taken is handed on, and the connection is closed."""
        return AmqpReader(self, self._source)
