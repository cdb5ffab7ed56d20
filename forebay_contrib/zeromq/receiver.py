"""Define the receiver of a ``ZeroMQ`` source. Importing this needs the client; the registry does it when needed.

Owns the reader of each ``on_start``, which owns a socket and its thread (``reader``).
"""

from __future__ import annotations

from typing import ClassVar

from forebay_contrib.zeromq.declaration import ZeroMQ
from receiver_runtime.receivers.missing_client import missing_client
from receiver_runtime.receivers.run_receiver import RunReceiver

try:
    from forebay_contrib.zeromq.reader import ZeroMQReader
except ModuleNotFoundError as error:
    raise missing_client(error, "zeromq", "pyzmq", "zeromq", "zmq") from error


class ZeroMQReceiver(RunReceiver):
    """Receive the messages of a ``ZeroMQ`` source. At most once: ZeroMQ has no acknowledgement."""

    columns: ClassVar[tuple[tuple[str, str], ...]] = ZeroMQ.columns

    def __init__(self, source: ZeroMQ) -> None:
        super().__init__()
        self._source = source

    def make_run(self) -> ZeroMQReader:
        """Make a reader, whose stop returns when what the library held is handed on and the socket is closed."""
        return ZeroMQReader(self, self._source)
