"""Salvage: register what earlier processes of a receiver stored and did not register.

A process that ends without a drain (it was killed or fenced, or its host is gone) leaves frames that no row names.
Before its successor reads anything, it goes through every unsealed segment of earlier epochs, by epoch and then in the
order in which they were made, and settles each.

What decides, and what may be trusted:

- **Which frames are registered** is decided by the successor's marker. No add of an older epoch succeeds behind it, a
  receiver's sequence has no gaps, and markers are never cleaned. So an epoch registered exactly its numbers up to the
  next marker, even after clean-up has taken their rows. The frame's own number therefore answers, for ever, and it
  takes one probe of the index per epoch. Salvage begins only after the claim was *answered*.
- **Which unsealed segments there are** is decided by their rows, which come before the files. A segment that its own
  process has sealed holds nothing unregistered (``write_ahead_log``). If no row names a file of the receiver, the
  driver log has lost the row (see below).
- **Which frame is the block**: of several frames with one number, the last intact one. Those before it are failed
  writes that were repeated; no caller was told that they are stored.
- **Whether the sender sends it again** is written into each frame. What the sender does not send again is registered.
  What it sends again without an acknowledgement is not registered, unless a later frame says that it was
  (``registered_through``): then it was acknowledged, and the driver log has lost it, by a restore. It is registered
  with the moves of its channels, which a note before it holds (``channel_salvage``). What is read again
  from a position in the driver log is never registered here, because the position is as old as the log.
- **Who may register**: only the newest epoch. It adds the blocks as its own next ones, under the fence of
  ``add_block``. A process that is replaced during its salvage is refused, and its successor goes on.
- **What was salvaged before**, by a successor that died during its salvage, is noted in the segment's row, in the same
  transaction that adds the blocks (``functions/blocks/salvage_blocks.sql``). Nothing depends on rows that clean-up may
  take.
- **A segment's end**: one statement seals all of an epoch's segments, after the last block and the event that reports
  it. Until then a repeated salvage gives the same result. A file is never truncated, and never appended to.

**A driver log that lost its last commits** (a standby was promoted without them, or a backup was restored) shows an end
of the epoch before a number that a frame says was registered. Those blocks are registered again, except blocks with
source positions: the positions were lost with them, so the records are read again. Rows of segments may be lost too.
Files in the receiver's own directory that no row names get a row, on two conditions: the driver log has known the
receiver since before them, and it has cleaned away no block from behind their epoch's end (a file that clean-up could
not delete in some replica must not come back). An ERROR reports both; docs/runbooks/postgres-failover.md says what else
is lost then.

A paused process may wake up and append to a file that was scanned already. It is fenced: it registers nothing,
acknowledges nothing, and says in its FENCED event how much it held. What it appends behind the sealed length is lost,
unless the sender sends it again. What it stores in a segment that it opens then is salvaged by the next epoch.

**A missing file** was never made (a crash between row and file), or an ephemeral store has lost it: its row is sealed
as empty, with an event. There are two exceptions, in which the content is unknown: this is not the store in which the
file was made (it is another host's directory), or the store is durable and blocks of the file are registered. The same
holds for a file that can't be read, and for a store that is not the expected one (a disk that is not mounted). Such an
epoch's segments stay open, with an event at every start; docs/runbooks/receiver-killed.md says how to give them up.

Damage is counted: numbers that are missing before the newest one were stored whole, and are lost; an ERROR says so. An
incomplete last frame is no damage, because its sync had not returned.

Encrypted frames are salvaged without a key: headers are never encrypted, and checksums cover what is stored.

Memory holds the handles of what one epoch left unregistered, never a payload. Another thread sends the process's
heartbeats, so a long salvage loses no lease.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from receiver_runtime.block_path.recovery.channel_salvage import GAP_SECONDS, ChannelSalvage
from receiver_runtime.block_path.recovery.groups import groups
from receiver_runtime.block_path.recovery.lost_segments import LostSegments
from receiver_runtime.block_path.recovery.salvage_report import RUNBOOK, SalvageReport
from receiver_runtime.block_path.recovery.segment_scan import OutOfReachError, SegmentScan
from receiver_runtime.block_store.frames.errors import StoreUnavailableError
from receiver_runtime.block_store.stores.identity import identity_of
from receiver_runtime.block_store.stores.stores import replicas_of
from receiver_runtime.watching.clock import Clock
from receiver_runtime.watching.progress import Progress
from tracker_store.blocks.blocks import AddOutcome, Claim, NewBlock
from tracker_store.blocks.dead_letters import StoredDeadLetter, add_dead_letters
from tracker_store.blocks.segments import OpenSegment, open_segments_before, salvage_blocks, seal_salvaged
from tracker_store.connection.errors import ReceiverFencedError, SequenceGapError, block_conflict
from tracker_store.schema.states import ReceiverEventKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from receiver_runtime.block_path.recovery.channel_salvage import FittedBlocks
    from receiver_runtime.block_path.recovery.found_frames import FoundFrames, SalvagedBlock
    from receiver_runtime.block_store.stores.interface import BlockStore, Replica
    from receiver_runtime.reporting.driver_log import DriverLog


def salvage(
    driver_log: DriverLog,
    store: BlockStore,
    *,
    claimed: Claim,
    location: str,
    clock: Clock | None = None,
    progress: Progress | None = None,
    gap_seconds: float = GAP_SECONDS,
) -> Claim:
    """Settle every unsealed segment of the receiver's earlier epochs; return the claim as it stands then.

    Args:
        driver_log: its calls wait while it is unavailable.
        store: of the segments.
        claimed: already answered; nothing is added under it yet.
        location: of the store, as ``store_location`` gives it.
        progress: counts each frame and segment that was read, or could not be.
        gap_seconds: how long to wait, in all, for records of channels that other receivers salvage.

    Raises:
        ReceiverFencedError: another process has taken the receiver over meanwhile.
        SequenceGapError: the driver log lost commits of this process meanwhile; a new claim salvages those blocks.
        GivenUpError: the process is ending. What was done stays done, and the next salvage goes on.
    """
    report = SalvageReport(driver_log, claimed)
    clock = clock or Clock()
    scan = SegmentScan(
        driver_log,
        store,
        claimed.receiver_id,
        location=location,
        clock=clock,
        progress=progress or Progress(),
    )
    LostSegments(driver_log, store, claimed, report, location=location).give_rows()
    channels = ChannelSalvage(driver_log, claimed.receiver_id, report, clock=clock, gap_seconds=gap_seconds)
    work = _Salvage(driver_log, claimed, scan, report, channels)
    segments = driver_log.until_answered(
        "look for segments to salvage",
        lambda c: open_segments_before(c, receiver_id=claimed.receiver_id, epoch=claimed.epoch),
    )
    for epoch, of_epoch in groupby(segments, key=lambda segment: segment.epoch):
        work.settle(epoch, list(of_epoch))
    return replace(claimed, sequence=work.newest_sequence)


def store_location(host: str, store: BlockStore, expected: Mapping[str, Sequence[str]] | None = None) -> str:
    """Return where a process's files lie. Two processes get the same answer only if each can read the other's files.

    `expected` gives each root's identity by its name, which is known even while the root is unavailable.
    """
    return ",".join(
        _root_location(host, replica, (expected or {}).get(replica.name, ())) for replica in replicas_of(store)
    )


def _root_location(host: str, replica: Replica, expected: Sequence[str]) -> str:
    if len(expected) == 1:
        return expected[0]
    try:
        identity = identity_of(replica)
    except (OSError, StoreUnavailableError):
        # A root that can't be asked now is not known to be shared.
        identity = None
    return identity or f"{host}:{replica.name}"


class _Salvage:
    """Settle epochs under one claim, in order."""

    def __init__(
        self,
        driver_log: DriverLog,
        claimed: Claim,
        scan: SegmentScan,
        report: SalvageReport,
        channels: ChannelSalvage,
    ) -> None:
        self._driver_log = driver_log
        self._receiver_id = claimed.receiver_id
        self._claim = claimed
        self._scan = scan
        self._report = report
        self._channels = channels
        self.newest_sequence = claimed.sequence

    def settle(self, epoch: int, segments: Sequence[OpenSegment]) -> None:
        """Salvage one epoch: read everything, register, report, seal."""
        try:
            found = self._scan.read(epoch, segments)
        except OutOfReachError as error:
            self._report.report(
                ReceiverEventKind.ERROR,
                "segments of an earlier process can't be reached, they stay open",
                f"epoch {epoch}, {len(segments)} segments: {error}; see {RUNBOOK}",
            )
            return
        first = self.newest_sequence + 1
        left = [b for b in found.blocks.values() if found.comes_again(b.source_rule, b.sequence)]
        taken = [b for b in found.blocks.values() if not found.comes_again(b.source_rule, b.sequence)]
        self._report.lost_commits(found, taken, left)
        sent_again = self._register(taken, found)
        recorded = self._record(epoch, found.letters)
        again = {block.sequence for block in sent_again}
        registered = [block for block in taken if block.sequence not in again]
        self._report.salvaged(found, registered, left, recorded, (first, self.newest_sequence), sent_again)
        self._report.damage(found, segments)
        self._driver_log.until_answered(
            "seal salvaged segments",
            lambda c: seal_salvaged(c, found.lengths, claimed=self._claim, through=self.newest_sequence),
        )

    def _register(self, stored: Sequence[SalvagedBlock], found: FoundFrames) -> Sequence[SalvagedBlock]:
        """Register blocks; return those that were left out, because all of their channels are behind them by now.

        In between, move the channels whose dead letters had no block.
        """
        left_out: list[SalvagedBlock] = []
        done = 0
        for sequence, moves in found.moves_alone:
            before = bisect_left(stored, sequence, lo=done, key=lambda block: block.sequence)
            left_out += self._register_run(stored[done:before])
            done = before
            self._channels.move_alone(moves)
        return left_out + self._register_run(stored[done:])

    def _register_run(self, stored: Sequence[SalvagedBlock]) -> list[SalvagedBlock]:
        left_out: list[SalvagedBlock] = []
        for _, of_segment in groupby(stored, key=lambda block: block.handle.segment_id):
            for group in groups(of_segment):
                done = 0
                while done < len(group):
                    fitted = self._register_first(group[done:])
                    left_out += fitted.left_out
                    done += fitted.count
        return left_out

    def _register_first(self, group: Sequence[SalvagedBlock]) -> FittedBlocks:
        """Register the first blocks of a group, up to one whose channel is before its move."""
        while True:
            fitted = self._channels.fitted(group)
            last = group[fitted.count - 1].handle
            blocks = [
                NewBlock(
                    *(self._receiver_id, self._claim.epoch, sequence, block.records, block.handle.length, block.handle),
                    moves=of_block,
                )
                for sequence, (block, of_block) in enumerate(
                    zip(fitted.kept, fitted.moves, strict=True), start=self.newest_sequence + 1
                )
            ]
            if not blocks:
                return fitted
            outcome, detail = self._driver_log.until_answered(
                "register salvaged blocks",
                lambda c, blocks=blocks, last=last: salvage_blocks(c, blocks, salvaged_to=last.offset + last.length),  # type: ignore[misc]
            )
            if outcome not in (AddOutcome.AGAIN, AddOutcome.CHANNEL_CONFLICT):
                break
        if outcome not in (AddOutcome.ADDED, AddOutcome.ALREADY_ADDED):
            errors = {AddOutcome.FENCED: ReceiverFencedError, AddOutcome.GAP: SequenceGapError}
            raise errors.get(outcome, block_conflict)(detail)
        self.newest_sequence = blocks[-1].sequence
        self._channels.registered(fitted)
        return fitted

    def _record(self, epoch: int, letters: Sequence[StoredDeadLetter]) -> int:
        recorded = 0
        for group in groups(letters):
            recorded += self._driver_log.until_answered(
                "record salvaged dead letters",
                lambda c, group=group: add_dead_letters(c, group, receiver_id=self._receiver_id, epoch=epoch),  # type: ignore[misc]
            )
        return recorded
