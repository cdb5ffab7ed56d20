"""Define the receiver of a ``Kafka`` source. Importing this needs the client; the registry does it to make a receiver.

Owns the reader of each ``on_start``, which owns its thread (``reader``) and its clients (``reading.group_client``).
"""

from __future__ import annotations

from typing import ClassVar

from receiver_runtime.receivers.kafka.declaration import Kafka
from receiver_runtime.receivers.missing_client import missing_client
from receiver_runtime.receivers.run_receiver import RunReceiver

try:
    from receiver_runtime.receivers.kafka.library import open_library
    from receiver_runtime.receivers.kafka.reader import KafkaReader
except ModuleNotFoundError as error:
    raise missing_client(error, "kafka", "confluent-kafka", "kafka", "confluent_kafka") from error


class KafkaReceiver(RunReceiver):
    """Receives records with their positions: exactly once. See ``Kafka``.

    With ``guarantee="at_most_once"`` it receives records as they come, and the client commits what it has read to the
    broker (X03).
    """

    columns: ClassVar[tuple[tuple[str, str], ...]] = Kafka.columns

    def __init__(self, source: Kafka) -> None:
        super().__init__()
        self._source = source
        self._as_objects = source.fetch == "objects" or not source.exactly_once

    def make_run(self) -> KafkaReader:
        """Return a reader. Its ``stop`` returns when what it handed on is registered, and it has left its group."""
        library = None if self._as_objects else open_library()
        return KafkaReader(self, self._source, library, on_library_failure=self._read_objects)

    def _read_objects(self) -> None:
        """Read records as objects, from the next start on."""
        self._as_objects = True
