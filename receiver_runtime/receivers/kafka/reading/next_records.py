"""Hand over the records that come next in each partition, as far as its rate allows.

A partition that has used up its rate (``partition_rates``) is late: it is not fetched, and what was fetched of it
beyond that rate is not handed over yet. Its position does not move, and it is read from there again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from receiver_runtime.block_path.block_handler import DeadLetter
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.receivers.kafka.records import RecordRun
from tracker_store.blocks.blocks import OffsetLink

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from receiver_runtime.receivers.kafka.partition_key import Key
    from receiver_runtime.receivers.kafka.partition_rates import PartitionRates
    from receiver_runtime.receivers.kafka.reading.assigned_partitions import AssignedPartitions
    from receiver_runtime.receivers.kafka.records import BadRecord, Records
    from receiver_runtime.receivers.kafka.unread import KafkaUnread
    from receiver_runtime.receivers.linked_hand_over import LinkedHandOver
    from receiver_runtime.supervisor.receiver import Receiver

#: The bytes of a record, before any came.
BYTES_EACH = 1000.0


class NextRecords:
    """Hand over records; see the module. Only the reader's thread uses it.

    ``leave`` is called with the partitions that are late.
    """

    def __init__(
        self,
        receiver: Receiver,
        partitions: AssignedPartitions,
        rates: PartitionRates,
        hand_over: LinkedHandOver,
        unread: KafkaUnread,
        leave: Callable[[Sequence[Key]], None],
    ) -> None:
        self._receiver = receiver
        self._partitions = partitions
        self._rates = rates
        self._hand_over = hand_over
        self._unread = unread
        self._leave = leave
        #: The bytes of a record, as of those that came last.
        self.bytes_each = BYTES_EACH

    def take(self, found: Sequence[Records], bad: Sequence[BadRecord]) -> None:
        """Hand over the records that come next in each partition."""
        next_ones = {key: partition.position for key, partition in self._partitions.read.items()}
        passing = [one for some in found if (one := self._passing(some, next_ones)) is not None]
        keep_aside(self._receiver, self._next_bad(bad, passing))
        for records in passing:
            self._push(records)

    def pass_waiting(self) -> None:
        """Hand over records that have waited for their partition's rate; fetch late partitions again in time."""
        released = self._rates.release()
        if released is not None:
            self._push(released)
        self._partitions.unsure.update(self._rates.returning())

    def _passing(self, found: Records, next_ones: dict[Key, int]) -> Records | None:
        """Return the records that come next in their partitions, as far as these may pass by their rates."""
        if not found.batch.num_rows:
            return None
        self.bytes_each = max(1.0, found.batch.nbytes / found.batch.num_rows)
        runs = [taken for run in found.runs if (taken := self._next_of(run, found.offsets, next_ones)) is not None]
        if not runs:
            return None
        passing, late = self._rates.divide(found.only(runs))
        if late:
            self._leave(late)
        return passing

    def _push(self, records: Records) -> None:
        for piece in records.pieces(self._receiver.supervisor.settings.max_block_bytes):
            # The links move the positions, which is wrong after a conflict.
            if self._hand_over.has_conflict or not self._hand_over.push(piece.batch, self._links(piece)):
                return
            self._unread.note_read(piece)

    def _next_bad(self, bad: Sequence[BadRecord], passing: Sequence[Records]) -> list[BadRecord]:
        """Return the bad records that come next in their partitions and are not read again."""
        found: list[BadRecord] = []
        for one in bad:
            key = (one.topic, one.partition)
            partition = self._partitions.read.get(key)
            if partition is None or key in self._partitions.unsure or one.offset < partition.position:
                continue
            # A late partition is read again from the last record that passes or waits.
            if key not in self._rates.late or one.offset < max(
                self._rates.waits_until(key), *(_ends(records).get(key, 0) for records in passing), 0
            ):
                found.append(one)
        return found

    def _next_of(self, run: RecordRun, offsets: NDArray[np.int64], next_ones: dict[Key, int]) -> RecordRun | None:
        key = (run.topic, run.partition)
        if key not in next_ones or key in self._partitions.unsure or key in self._rates.late:
            return None
        of_run = offsets[run.first : run.end]
        if np.any(np.diff(of_run) <= 0):
            # The client never returns offsets out of order. If it does, drop them and read the partition again.
            self._partitions.unsure.add(key)
            return None
        first = run.first + int(np.searchsorted(of_run, next_ones[key]))
        if first == run.end:
            return None
        next_ones[key] = int(offsets[run.end - 1]) + 1
        return RecordRun(run.topic, run.partition, first, run.end)

    def _links(self, piece: Records) -> list[OffsetLink]:
        """Return the links of a piece's partitions, and all links that waited for a block.

        Each link begins exactly at its partition's position, and the position moves to the link's end.
        """
        links: list[OffsetLink] = []
        for partition in self._partitions.read.values():
            links += partition.links
            partition.links = []
        for (topic, number), end in _ends(piece).items():
            partition = self._partitions.read[topic, number]
            links.append(OffsetLink(topic, str(number), partition.generation, partition.position, end))
            partition.position = end
        return links


def _ends(records: Records) -> dict[Key, int]:
    """Return the offset after the last record of each partition."""
    return {(run.topic, run.partition): int(records.offsets[run.end - 1]) + 1 for run in records.runs}


def keep_aside(receiver: Receiver, bad: Sequence[BadRecord]) -> None:
    """Store bad records as dead letters.

    The link of the records after them moves the position past them. Until then they may be read again.
    """
    if not bad:
        return
    receiver.store_dead_letters(
        [DeadLetter(DeadLetterReason.INVALID_ENCODING, one.data or one.place.encode()) for one in bad]
    )
    for one in bad:
        receiver.report_error(
            "a record went aside: the name of one of its headers is not UTF-8",
            ValueError(
                f"{one.place}: Its value, or its place where it has none, is kept as a dead letter. "
                "Name headers in UTF-8."
            ),
        )
