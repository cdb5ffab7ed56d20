"""Read and write the driver log's rows of one epoch of one receiver, except those of its blocks.

These are its segments, its dead letters, the positions of its source's partitions, and its stream's keys and channels.
Each call waits until it is answered, except where it says otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracker_store.blocks.blocks import known_keys, open_partition
from tracker_store.blocks.channels import channel_positions, move_channels
from tracker_store.blocks.dead_letters import add_dead_letters, end_letter_replay, wanted_letters
from tracker_store.blocks.segments import open_segment, seal_segment
from tracker_store.blocks.source_positions import forget_partitions, peers_of, source_positions
from tracker_store.connection.errors import TRANSIENT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import sqlalchemy as sa

    from receiver_runtime.reporting.driver_log import DriverLog
    from receiver_runtime.reporting.receiver_status import ReceiverStatus
    from tracker_store.blocks.blocks import ChannelMove, Claim, Position
    from tracker_store.blocks.channels import ChannelKey
    from tracker_store.blocks.dead_letters import StoredDeadLetter, WantedLetters
    from tracker_store.blocks.segments import CodecSum
    from tracker_store.blocks.source_positions import Peer


class ReceiverDriverLog:
    """Read and write one epoch's rows; see the module. Any thread.

    Args:
        claim: already answered.
        status: shows operators that a call waits.
        store: where the segments are.
        durability: of the segments.
    """

    def __init__(
        self,
        driver_log: DriverLog,
        *,
        claim: Claim,
        status: ReceiverStatus | None = None,
        store: str | None = None,
        durability: str = "durable",
    ) -> None:
        self._driver_log = driver_log
        self.claim = claim
        self._store = store
        self._durability = durability
        self._status = status

    def open_segment(self, path: str, source_rule: str) -> int:
        """Insert the segment's row, before its file is made; return its id."""
        return self._driver_log.until_answered(
            "open a segment",
            lambda connection: open_segment(
                connection,
                receiver_id=self.claim.receiver_id,
                epoch=self.claim.epoch,
                path=path,
                source_rule=source_rule,
                store=self._store,
                durability=self._durability,
            ),
            status=self._status,
        )

    def seal_segment(self, segment_id: int, length: int, sequence: int, codecs: Sequence[CodecSum]) -> None:
        """Record the segment's final length, and its blocks by codec. Tried once, because the caller tries again.

        If the driver log has lost the segment's newest block, `sequence`, the segment stays open for salvage.
        """
        owner = (self.claim.receiver_id, self.claim.epoch)
        self._driver_log.once(
            lambda connection: seal_segment(
                connection, segment_id=segment_id, length=length, through=sequence, owner=owner, codecs=codecs
            )
        )

    def open_partition(self, source: str, partition: str, start_offset: int) -> Position:
        """Return where to read a partition from."""
        return self._driver_log.until_answered(
            "open a partition",
            lambda connection: open_partition(
                connection,
                receiver_id=self.claim.receiver_id,
                source=source,
                partition=partition,
                start_offset=start_offset,
            ),
            status=self._status,
        )

    @property
    def receiver_id(self) -> int:
        """Return the receiver's id."""
        return self.claim.receiver_id

    def all_of(self, source: str) -> Mapping[str, Position]:
        """Return the position of each partition of a source."""
        return self._driver_log.until_answered(
            "read the positions of a source",
            lambda connection: source_positions(connection, receiver_id=self.claim.receiver_id, source=source),
            status=self._status,
        )

    def forget(self, source: str, partitions: Sequence[str]) -> None:
        """Remove positions."""
        self._driver_log.until_answered(
            "forget positions of a source",
            lambda connection: forget_partitions(
                connection, receiver_id=self.claim.receiver_id, source=source, partitions=partitions
            ),
            status=self._status,
        )

    def peers(self) -> Sequence[Peer]:
        """Return the receivers that read the stream now."""
        return self._driver_log.once(lambda connection: peers_of(connection, receiver_id=self.claim.receiver_id))

    def known_keys(self, keys: Sequence[str], *, wait: bool = True) -> set[str]:
        """Return those that the stream has received; without ``wait``, none if the driver log can't be asked now."""

        def statement(connection: sa.Connection) -> set[str]:
            return known_keys(connection, receiver_id=self.claim.receiver_id, keys=keys)

        if wait:
            return self._driver_log.until_answered("look up keys", statement, status=self._status)
        try:
            return self._driver_log.once(statement)
        except TRANSIENT:
            return set()

    def channel_positions(self, channels: Sequence[ChannelKey], *, wait: bool = True) -> list[int]:
        """Return the position of each channel, in order; without ``wait``, raise if that can't be asked now."""

        def statement(connection: sa.Connection) -> list[int]:
            return channel_positions(connection, receiver_id=self.claim.receiver_id, channels=channels)

        if not wait:
            return self._driver_log.once(statement)
        return self._driver_log.until_answered("read positions of channels", statement, status=self._status)

    def move_channels(self, moves: Sequence[ChannelMove]) -> bool:
        """Move channels on without a block: all of them, or none if one is elsewhere."""
        return self._driver_log.until_answered(
            "move channels",
            lambda connection: move_channels(connection, receiver_id=self.claim.receiver_id, moves=moves),
            status=self._status,
        )

    def add_dead_letters(self, letters: Sequence[StoredDeadLetter]) -> None:
        """Insert the rows of stored dead letters."""
        self._driver_log.until_answered(
            "record dead letters",
            lambda connection: add_dead_letters(
                connection, letters, receiver_id=self.claim.receiver_id, epoch=self.claim.epoch
            ),
            status=self._status,
        )

    def wanted_letters(self) -> Sequence[WantedLetters]:
        """Return the rows of dead letters that the receiver is to parse again."""
        return self._driver_log.until_answered(
            "look for dead letters to parse again",
            lambda connection: wanted_letters(connection, self.claim.receiver_id),
            status=self._status,
        )

    def end_letter_replay(self, dead_letter_id: int, left: Sequence[int] | None, *, to: str) -> None:
        """Record which records of a row were left."""
        self._driver_log.until_answered(
            "record that dead letters were parsed again",
            lambda connection: end_letter_replay(connection, dead_letter_id, left=left, to=to),
            status=self._status,
        )
