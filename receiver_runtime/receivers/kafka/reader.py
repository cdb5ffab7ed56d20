"""Read a consumer group's share of partitions into blocks, on one thread, from one ``on_start`` to its ``on_stop``.

Owns the thread, and says why reading ended. How records are read is in ``reading``: with their positions
(``positioned_reading``), or as they come (``at_most_once_reading``).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from receiver_runtime.receivers.kafka.layout_probe import LibraryError
from receiver_runtime.receivers.kafka.partition_rates import PartitionRates
from receiver_runtime.receivers.kafka.places import OutOfRangeError
from receiver_runtime.receivers.kafka.reading.at_most_once_reading import AtMostOnceReading
from receiver_runtime.receivers.kafka.reading.group_client import GroupClient
from receiver_runtime.receivers.kafka.reading.positioned_reading import PositionedReading

if TYPE_CHECKING:
    from collections.abc import Callable

    from receiver_runtime.receivers.kafka.declaration import Kafka
    from receiver_runtime.receivers.kafka.library import Library
    from receiver_runtime.supervisor.receiver import Receiver


class KafkaReader:
    """Read partitions; see the module. Call ``start`` and ``stop`` once.

    ``library`` fetches, if it is given. ``on_library_failure`` is called when the library does not behave as expected.
    """

    def __init__(
        self,
        receiver: Receiver,
        source: Kafka,
        library: Library | None = None,
        on_library_failure: Callable[[], None] = lambda: None,
    ) -> None:
        self._receiver = receiver
        self._source = source
        self._library = library
        self._on_library_failure = on_library_failure
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"kafka {source.group}", daemon=True)

    def start(self) -> None:
        """Begin to read; return at once."""
        self._thread.start()

    def stop(self) -> None:
        """End; return when what was handed over is registered or refused, and the group is left."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            client = GroupClient.open(self._receiver, self._source, self._library)
        except Exception as error:  # noqa: BLE001  an option that is wrong, a secret that is missing
            self._receiver.restart("the Kafka client could not be made", error)
            return
        try:
            if self._source.exactly_once:
                settings = self._receiver.supervisor.settings
                rates = PartitionRates(
                    self._source.max_rate_per_partition,
                    most_bytes=settings.max_block_bytes,
                    every=settings.block_interval,
                )
                PositionedReading(self._receiver, self._source, client, rates, self._stopping).run()
            else:
                AtMostOnceReading(self._receiver, self._source, client, self._stopping).run()
        except LibraryError as error:
            self._on_library_failure()
            self._receiver.restart("records are read as objects from now on", error)
        except OutOfRangeError as error:
            self._receiver.stop("what is to be read next is not on the broker", error)
        except BaseException as error:  # noqa: BLE001  reported, and started again
            self._receiver.restart("reading from Kafka failed", error)
        finally:
            client.close()
