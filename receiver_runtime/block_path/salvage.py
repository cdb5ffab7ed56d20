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
  (``registered_through``): then it was acknowledged, and the driver log has lost it, by a restore. What is read again
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

import re
import threading
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, TypeVar

import structlog

from receiver_runtime.block_store.frames.errors import BlockStoreError, StoreUnavailableError
from receiver_runtime.block_store.frames.frame import FrameKind, SourceRule
from receiver_runtime.block_store.frames.letter_group import bytes_of_letters
from receiver_runtime.block_store.frames.segment import DamagedFrame, IntactFrame, TornTail
from receiver_runtime.block_store.stores.identity import identity_of
from receiver_runtime.block_store.stores.stores import replicas_of
from receiver_runtime.watching.clock import Clock
from receiver_runtime.watching.progress import Progress
from tracker_store.blocks.blocks import AddOutcome, BlockHandle, Claim, NewBlock
from tracker_store.blocks.dead_letters import StoredDeadLetter, add_dead_letters
from tracker_store.blocks.segments import (
    OpenSegment,
    count_blocks_of_segment,
    end_of_epoch,
    oldest_known,
    open_segment,
    open_segments_before,
    salvage_blocks,
    seal_salvaged,
)
from tracker_store.blocks.stored_blocks import segment_paths_known
from tracker_store.connection.errors import BlockConflictError, ReceiverFencedError, SequenceGapError
from tracker_store.receivers.receivers import report_event
from tracker_store.schema.states import ReceiverEventKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from receiver_runtime.block_store.stores.interface import BlockStore, Replica
    from receiver_runtime.reporting.driver_log import DriverLog

_log = structlog.get_logger(__name__)

Item = TypeVar("Item")

# How many blocks, or dead letters, go into one statement.
GROUP = 500
# How often to try to read from the store; what can't be read then waits for the next start.
_READ_ATTEMPTS = 3
_READ_DELAY = 0.2
_RUNBOOK = "docs/runbooks/receiver-killed.md"
_FAILOVER_RUNBOOK = "docs/runbooks/postgres-failover.md"
# receiver-ID/EPOCH-NUMBER.segment, and EPOCH-dNUMBER of dead letters
_SEGMENT_NAME = re.compile(r"receiver-(?P<receiver>\d+)/(?P<epoch>\d+)-(?P<letters>d?)(?P<number>\d+)\.segment")
_PATHS_SHOWN = 5


class _OutOfReachError(Exception):
    """Nothing can be known here and now about a segment's content."""


@dataclass(frozen=True, slots=True)
class _SalvagedBlock:
    sequence: int
    records: int
    source_rule: SourceRule
    handle: BlockHandle


@dataclass(slots=True)
class _FoundFrames:
    """Hold what one epoch's unsealed segments contain."""

    epoch: int
    #: The newest number that the epoch registered.
    registered: int
    #: Whether its claim is in the driver log. If the claim was lost, so was the number at which the epoch began.
    known: bool = True
    lengths: dict[int, int] = field(default_factory=dict)
    #: By sequence, in the order of the files: intact blocks that are not registered and were not salvaged before.
    blocks: dict[int, _SalvagedBlock] = field(default_factory=dict)
    #: Numbers behind ``registered`` that have an intact frame.
    intact: set[int] = field(default_factory=set)
    #: Damaged frames behind ``registered``: the number of records by their header, and their rule.
    damaged: dict[int, tuple[int, SourceRule]] = field(default_factory=dict)
    #: The newest number in any header behind ``registered``.
    newest: int = 0
    #: The newest number that a later frame says was registered.
    acknowledged: int = 0
    damaged_registered: int = 0
    damaged_letters: int = 0
    unreadable_bytes: int = 0
    letters: list[StoredDeadLetter] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    #: Registered blocks and records whose ephemeral file is gone.
    gone_blocks: int = 0
    gone_records: int = 0

    @property
    def first(self) -> int:
        """Return the first number that the epoch may have stored and not registered."""
        if self.known:
            return self.registered + 1
        return min(self.intact | self.damaged.keys(), default=self.newest + 1)

    def count_unread(self, rule: SourceRule) -> int:
        """Return how many numbers have no frame that can be read, and are not delivered again by this rule.

        It counts the numbers in between, and does not go through them: a header may say any number up to 2^63.
        """
        last = self.newest
        if rule is SourceRule.OFFSETS:
            return 0
        if rule is SourceRule.SENT_AGAIN:
            last = min(last, self.acknowledged)
        seen = sum(self.first <= sequence <= last for sequence in self.intact | self.damaged.keys())
        return max(0, last - self.first + 1 - seen)

    def was_acknowledged(self, block: _SalvagedBlock) -> bool:
        """Return whether the driver log had this block once, although it lacks it now."""
        return block.sequence <= self.acknowledged

    def comes_again(self, rule: SourceRule, sequence: int) -> bool:
        """Return whether the source will deliver this unregistered block's records again."""
        if rule is SourceRule.SENT_AGAIN:
            return sequence > self.acknowledged
        return rule is SourceRule.OFFSETS


def salvage(
    driver_log: DriverLog,
    store: BlockStore,
    *,
    claimed: Claim,
    location: str,
    clock: Clock | None = None,
    progress: Progress | None = None,
) -> Claim:
    """Settle every unsealed segment of the receiver's earlier epochs; return the claim as it stands then.

    Args:
        driver_log: its calls wait while it is unavailable.
        store: of the segments.
        claimed: already answered; nothing is added under it yet.
        location: of the store, as ``store_location`` gives it.
        progress: counts each frame and segment that was read, or could not be.

    Raises:
        ReceiverFencedError: another process has taken the receiver over meanwhile.
        SequenceGapError: the driver log lost commits of this process meanwhile; a new claim salvages those blocks.
        GivenUpError: the process is ending. What was done stays done, and the next salvage goes on.
    """
    work = _Salvage(driver_log, store, claimed, location, clock or Clock(), progress or Progress())
    work.give_rows_to_lost_segments()
    segments = driver_log.until_answered(
        "look for segments to salvage",
        lambda c: open_segments_before(c, receiver_id=claimed.receiver_id, epoch=claimed.epoch),
    )
    for epoch, of_epoch in groupby(segments, key=lambda segment: segment.epoch):
        work.do(epoch, list(of_epoch))
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
    def __init__(
        self,
        driver_log: DriverLog,
        store: BlockStore,
        claimed: Claim,
        location: str,
        clock: Clock,
        progress: Progress,
    ) -> None:
        self._progress = progress
        self._driver_log = driver_log
        self._store = store
        self._receiver_id = claimed.receiver_id
        self._claim = claimed
        self._location = location
        self._clock = clock
        self.newest_sequence = claimed.sequence

    # -- segments without rows ---------------------------------------------------------------------------------------

    def give_rows_to_lost_segments(self) -> None:
        """Give a row to each file of the receiver that has none, as if a killed process had left it open."""
        try:
            unknown = [found for page in _groups(sorted(self._own_files())) for found in self._without_row(page)]
            if unknown:
                # Clean-up deletes a file, then its row. If it deleted a row since the first look, the file is gone now
                # too.
                files = self._own_files()
                unknown = [found for found in unknown if found in files]
        except (OSError, BlockStoreError) as error:
            _log.warning("could not look for lost segments", receiver_id=self._receiver_id, error=str(error))
            return
        if not unknown:
            return
        oldest = self._driver_log.until_answered(
            "read since when the receiver is known", lambda c: oldest_known(c, receiver_id=self._receiver_id)
        )
        given, left = [], []
        for epoch, _, path in unknown:
            end = self._driver_log.until_answered(
                "read where an epoch ended",
                lambda c, epoch=epoch: end_of_epoch(c, receiver_id=self._receiver_id, epoch=epoch),  # type: ignore[misc]
            )
            if oldest.epoch <= epoch < self._claim.epoch and oldest.low_mark <= end.sequence:
                self._give_row(epoch, path)
                given.append(path)
            else:
                left.append(path)
        said = []
        if given:
            said.append(f"{len(given)} are salvaged now: {_some(given)}")
        if left:
            said.append(f"{len(left)} stay as they are, for they may be another driver log's: {_some(left)}")
        self._tell(
            ReceiverEventKind.ERROR,
            "the driver log has no rows of segments that this receiver made",
            f"it lost its last commits, or was restored: {'; '.join(said)}; see {_FAILOVER_RUNBOOK}",
        )

    def _own_files(self) -> set[tuple[int, int, str]]:
        """Return the receiver's files as (epoch, number, path)."""
        found = set()
        for path in self._store.segment_paths(f"receiver-{self._receiver_id}"):
            name = _SEGMENT_NAME.fullmatch(path)
            if name is not None and int(name["receiver"]) == self._receiver_id:
                found.add((int(name["epoch"]), int(name["number"]), path))
        return found

    def _without_row(self, page: Sequence[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
        paths = [path for _, _, path in page]
        known = self._driver_log.until_answered("look for rows of segments", lambda c: segment_paths_known(c, paths))
        return [found for found in page if found[2] not in known]

    def _give_row(self, epoch: int, path: str) -> None:
        rule = SourceRule.NOT_SENT_AGAIN
        try:
            for item in self._store.scan(path):
                if not isinstance(item, TornTail) and item.header is not None:
                    rule = item.header.source_rule
                    break
        except (OSError, BlockStoreError) as error:
            # Salvage looks for itself, and each frame has its own.
            _log.warning("could not read a lost segment yet", path=path, error=str(error))
        self._driver_log.until_answered(
            "give a segment its row",
            lambda c: open_segment(
                c,
                receiver_id=self._receiver_id,
                epoch=epoch,
                path=path,
                source_rule=rule.name.lower(),
                store=self._location,
            ),
        )

    # -- one epoch ---------------------------------------------------------------------------------------------------

    def do(self, epoch: int, segments: Sequence[OpenSegment]) -> None:
        """Salvage one epoch: look at everything, register, report, seal."""
        try:
            found = self._look(epoch, segments)
        except _OutOfReachError as error:
            self._tell(
                ReceiverEventKind.ERROR,
                "segments of an earlier process can't be reached, they stay open",
                f"epoch {epoch}, {len(segments)} segments: {error}; see {_RUNBOOK}",
            )
            return
        first = self.newest_sequence + 1
        left = [b for b in found.blocks.values() if found.comes_again(b.source_rule, b.sequence)]
        taken = [b for b in found.blocks.values() if not found.comes_again(b.source_rule, b.sequence)]
        self._tell_lost_commits(found, taken, left)
        self._register(taken)
        recorded = self._record(epoch, found.letters)
        self._tell_salvaged(found, taken, left, recorded, first)
        self._tell_lost(found, segments)
        self._driver_log.until_answered(
            "seal salvaged segments",
            lambda c: seal_salvaged(c, found.lengths, claimed=self._claim, through=self.newest_sequence),
        )

    # -- look --------------------------------------------------------------------------------------------------------

    def _look(self, epoch: int, segments: Sequence[OpenSegment]) -> _FoundFrames:
        end = self._driver_log.until_answered(
            "read where an epoch ended", lambda c: end_of_epoch(c, receiver_id=self._receiver_id, epoch=epoch)
        )
        found = _FoundFrames(epoch, end.sequence, known=end.known, newest=end.sequence)
        for segment in segments:
            try:
                self._patiently(segment, found)
            except FileNotFoundError:
                self._look_at_missing(segment, found)
        return found

    def _patiently(self, segment: OpenSegment, found: _FoundFrames) -> None:
        for attempt in range(1, _READ_ATTEMPTS + 1):
            try:
                items = list(self._wanted(segment, found))
            except FileNotFoundError:
                raise
            except (OSError, BlockStoreError) as error:
                self._progress.failed(f"{segment.path} can't be read: {error}")
                if attempt == _READ_ATTEMPTS:
                    raise _OutOfReachError(f"{segment.path} can't be read: {error}") from error
                self._wait(_READ_DELAY * attempt)
            else:
                self._progress.made()
                for item in items:
                    _take(segment, item, found)
                return

    def _wanted(self, segment: OpenSegment, found: _FoundFrames) -> Iterator[IntactFrame | DamagedFrame]:
        """Yield the frames of a segment that matter: all except intact blocks that are registered."""
        length = 0
        name = _SEGMENT_NAME.fullmatch(segment.path)
        # No block is ever stored there: one that is found came from a sender.
        of_letters = name is not None and bool(name["letters"])
        for item in self._store.scan(segment.path):
            if isinstance(item, TornTail):
                break
            # A large segment in a slow store takes long to read; that is not stuck.
            self._progress.made()
            length = item.offset + item.length
            header = item.header
            if (
                isinstance(item, IntactFrame)
                and header is not None
                and self._is_ours(segment, item)
                and header.kind is FrameKind.BLOCK
                and header.sequence <= found.registered
            ):
                continue
            if isinstance(item, IntactFrame) and (
                not self._is_ours(segment, item) or (of_letters and item.header.kind is FrameKind.BLOCK)
            ):
                yield _unreadable(item)
            else:
                yield item
        found.lengths[segment.segment_id] = length

    def _is_ours(self, segment: OpenSegment, frame: IntactFrame) -> bool:
        return frame.header.receiver_id == self._receiver_id and frame.header.epoch == segment.epoch

    def _look_at_missing(self, segment: OpenSegment, found: _FoundFrames) -> None:
        if segment.store != self._location:
            raise _OutOfReachError(
                f"{segment.path} was made in {segment.store or 'a store that is not known'}, "
                f"and is not in {self._location}"
            )
        blocks, records = self._driver_log.until_answered(
            "count what a missing segment held",
            lambda c: count_blocks_of_segment(c, receiver_id=self._receiver_id, segment_id=segment.segment_id),
        )
        if blocks and segment.durability != "ephemeral":
            raise _OutOfReachError(
                f"{segment.path} is missing in {self._location}, though {blocks} registered blocks lie in it"
            )
        found.lengths[segment.segment_id] = 0
        found.missing.append(segment.path)
        found.gone_blocks += blocks
        found.gone_records += records

    def _wait(self, seconds: float) -> None:
        condition = threading.Condition()
        deadline = self._clock.monotonic() + seconds
        with condition:
            while (left := deadline - self._clock.monotonic()) > 0:
                self._clock.wait_on(condition, left)

    # -- register ----------------------------------------------------------------------------------------------------

    def _register(self, stored: Sequence[_SalvagedBlock]) -> None:
        for _, of_segment in groupby(stored, key=lambda block: block.handle.segment_id):
            for group in _groups(of_segment):
                self._register_group(group)

    def _register_group(self, group: Sequence[_SalvagedBlock]) -> None:
        first = self.newest_sequence + 1
        blocks = [
            NewBlock(self._receiver_id, self._claim.epoch, sequence, block.records, block.handle.length, block.handle)
            for sequence, block in enumerate(group, start=first)
        ]
        last = blocks[-1].handle
        while True:
            outcome, detail = self._driver_log.until_answered(
                "register salvaged blocks", lambda c: salvage_blocks(c, blocks, salvaged_to=last.offset + last.length)
            )
            if outcome is not AddOutcome.AGAIN:
                break
        if outcome not in (AddOutcome.ADDED, AddOutcome.ALREADY_ADDED):
            errors = {AddOutcome.FENCED: ReceiverFencedError, AddOutcome.GAP: SequenceGapError}
            raise errors.get(outcome, BlockConflictError)(detail)
        self.newest_sequence = blocks[-1].sequence

    def _record(self, epoch: int, letters: Sequence[StoredDeadLetter]) -> int:
        recorded = 0
        for group in _groups(letters):
            recorded += self._driver_log.until_answered(
                "record salvaged dead letters",
                lambda c, group=group: add_dead_letters(c, group, receiver_id=self._receiver_id, epoch=epoch),  # type: ignore[misc]
            )
        return recorded

    # -- report ------------------------------------------------------------------------------------------------------

    def _tell_lost_commits(
        self, found: _FoundFrames, taken: Sequence[_SalvagedBlock], left: Sequence[_SalvagedBlock]
    ) -> None:
        """Report lost commits. Called before the blocks are registered, or a successor would find fewer to report."""
        again = [block for block in taken if found.was_acknowledged(block)]
        read = [block for block in left if found.was_acknowledged(block)]
        if found.acknowledged <= found.registered:
            return
        said = []
        if again:
            said.append(f"{_counted(again)} ({_numbers(again)}) are registered again")
        if read:
            said.append(f"{_counted(read)} ({_numbers(read)}) are read again from the positions that it has")
        self._tell(
            ReceiverEventKind.ERROR,
            "the driver log lacks blocks that it had acknowledged",
            f"epoch {found.epoch} is registered up to sequence {found.registered}, and was up to {found.acknowledged}: "
            f"it lost its last commits, or was restored; {'; '.join(said) or 'nothing of them is stored'}; "
            f"see {_FAILOVER_RUNBOOK}",
        )

    def _tell_salvaged(
        self,
        found: _FoundFrames,
        taken: Sequence[_SalvagedBlock],
        left: Sequence[_SalvagedBlock],
        recorded: int,
        first: int,
    ) -> None:
        said = []
        if taken:
            said.append(f"{_counted(taken)} registered as {first}..{self.newest_sequence}")
        if left:
            said.append(f"{_counted(left)} left to the sender, who sends them again")
        if recorded:
            said.append(f"{recorded} dead letters recorded")
        said += [f"{path} was never made, or is gone, and is sealed as empty" for path in found.missing]
        if said:
            self._tell(
                ReceiverEventKind.SALVAGED,
                "segments of an earlier process were salvaged",
                f"epoch {found.epoch}, {len(found.lengths)} segments: {'; '.join(said)}",
            )
        else:
            _log.info("nothing to salvage", receiver_id=self._receiver_id, epoch=found.epoch)

    def _tell_lost(self, found: _FoundFrames, segments: Sequence[OpenSegment]) -> None:
        rule = SourceRule[segments[0].source_rule.upper()]
        # A readable header is more exact than its segment's rule: a segment may hold blocks of either rule.
        damaged = [
            records
            for sequence, (records, its_rule) in found.damaged.items()
            if sequence not in found.intact and not found.comes_again(its_rule, sequence)
        ]
        unknown = found.count_unread(rule)
        said = []
        if damaged or unknown:
            more = f", and those of {unknown} blocks that can't be counted" if unknown else ""
            said.append(
                f"{len(damaged) + unknown} blocks that were not registered are damaged: "
                f"{sum(damaged)} records lost{more}"
            )
        if found.gone_blocks:
            said.append(f"{found.gone_blocks} registered blocks, {found.gone_records} records, went with their file")
        if found.damaged_registered:
            said.append(f"{found.damaged_registered} frames of registered blocks are damaged, their batches may fail")
        if found.damaged_letters:
            said.append(f"{found.damaged_letters} dead letters are damaged")
        if found.unreadable_bytes:
            said.append(f"{found.unreadable_bytes} bytes hold no frame that can be read")
        if said:
            paths = ", ".join(segment.path for segment in segments[:3]) + (" …" if len(segments) > 3 else "")  # noqa: PLR2004
            self._tell(
                ReceiverEventKind.ERROR,
                "segments of an earlier process are damaged",
                f"epoch {found.epoch}: {'; '.join(said)}; in {paths}; see {_RUNBOOK}",
            )

    def _tell(self, kind: ReceiverEventKind, message: str, detail: str) -> None:
        """Report at once, not through the reporter, so that a reported loss stays reported if this process dies now."""
        _log.warning(message, receiver_id=self._receiver_id, detail=detail)
        self._driver_log.until_answered(
            "tell of salvage",
            lambda c: report_event(
                c, receiver_id=self._receiver_id, epoch=self._claim.epoch, kind=kind, message=message, detail=detail
            ),
        )


def _take(segment: OpenSegment, item: IntactFrame | DamagedFrame, found: _FoundFrames) -> None:
    """Add one frame to what was found."""
    header = item.header
    if header is None:
        found.unreadable_bytes += item.length
        return
    found.acknowledged = max(found.acknowledged, header.registered_through)
    if header.kind is FrameKind.NOTE:
        return
    if header.kind in (FrameKind.DEAD_LETTER, FrameKind.LETTER_GROUP):
        is_group = header.kind is FrameKind.LETTER_GROUP
        if isinstance(item, DamagedFrame):
            found.damaged_letters += header.letters if is_group else 1
        else:
            reason = header.reason.label if header.reason is not None else ""
            handle = BlockHandle(segment.segment_id, item.offset, item.length, item.crc32c)
            letters, nbytes = 1, header.content_length
            if is_group:
                letters, nbytes = header.letters, bytes_of_letters(nbytes, header.letters)
            found.letters.append(StoredDeadLetter(reason, header.part, nbytes, handle, letters=letters))
        return
    sequence = header.sequence
    if sequence <= found.registered:
        found.damaged_registered += isinstance(item, DamagedFrame)
        return
    found.newest = max(found.newest, sequence)
    if isinstance(item, DamagedFrame):
        found.damaged[sequence] = (header.records, header.source_rule)
        return
    # A failed write was repeated: the later frame counts, even if it was salvaged before.
    found.blocks.pop(sequence, None)
    found.intact.add(sequence)
    if item.offset >= segment.salvaged_to:
        handle = BlockHandle(segment.segment_id, item.offset, item.length, item.crc32c)
        found.blocks[sequence] = _SalvagedBlock(sequence, header.records, header.source_rule, handle)


def _unreadable(frame: IntactFrame) -> DamagedFrame:
    return DamagedFrame(frame.offset, frame.length, None, "a frame of another receiver or epoch, or a block of no one")


def _counted(blocks: Sequence[_SalvagedBlock]) -> str:
    return f"{len(blocks)} blocks, {sum(block.records for block in blocks)} records"


def _numbers(blocks: Sequence[_SalvagedBlock]) -> str:
    return f"sequences {blocks[0].sequence}..{blocks[-1].sequence}"


def _some(paths: Sequence[str]) -> str:
    return ", ".join(paths[:_PATHS_SHOWN]) + (" …" if len(paths) > _PATHS_SHOWN else "")


def _groups(items: Iterable[Item]) -> Iterator[list[Item]]:
    group: list[Item] = []
    for item in items:
        group.append(item)
        if len(group) == GROUP:
            yield group
            group = []
    if group:
        yield group
