"""Compares the block store with the driver log: what is missing, what is damaged, what no row names.

Reads every registered block and its checksum, in each replica, so it takes as long as the disks do; and every frame of
the versions of outputs' states that a commit names. Every file in the folder of a version that has a row is known,
whether or not one of its frames is in it. Blocks are counted by the key that encrypted them; where the key is known
here, their authentication tag is checked too. A block whose key is missing here is not lost, and a repair needs no key.

A repair never deletes: it moves aside a file that no row names, and a replica's damaged segment before a good copy
takes its place. It names what it can't repair.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from receiver_runtime.block_store.frames.encryption import BlockKeys, key_id_of
from receiver_runtime.block_store.frames.errors import BlockKeyError, BlockStoreError
from receiver_runtime.block_store.frames.reading import content_of
from receiver_runtime.block_store.frames.segment import IntactFrame
from receiver_runtime.block_store.stores.stores import replicas_of
from tracker_store.blocks.stored_blocks import (
    forget_empty_segment,
    segment_paths_known,
    segments,
    stored_blocks,
)
from tracker_store.retention.state_files import STATES, state_folders_known, state_frames
from tracker_store.schema.states import SegmentState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import datetime

    import sqlalchemy as sa

    from receiver_runtime.block_store.stores.interface import BlockStore, Replica

_PATHS_PER_QUERY = 1_000
_FAILURES = (BlockStoreError, OSError)


@dataclass(frozen=True, slots=True)
class LostBlock:
    """Describe a registered block whose bytes are missing or damaged in every replica."""

    receiver_id: int
    sequence: int
    path: str
    problem: str


@dataclass(frozen=True, slots=True)
class LostState:
    """Describe a frame of an output's state whose bytes are missing or damaged in every replica."""

    pipeline: str
    output: str
    batch_time: datetime
    path: str
    problem: str


@dataclass(slots=True)
class ReplicaReport:
    """Report on one of several replicas. `lacking`: registered blocks that only other replicas have, by segment."""

    name: str
    lacking: dict[str, int] = field(default_factory=dict)
    orphans: list[str] = field(default_factory=list)
    unreachable: str = ""

    @property
    def intact(self) -> bool:
        """Return whether the replica can be reached and has everything."""
        return not (self.lacking or self.unreachable)


@dataclass(slots=True)
class BlockReport:
    """Hold what was found. `orphans` are files that no row names, `missing` segments whose file is not there.

    `replicas` is empty if the store has a single root. `keys` counts encrypted blocks by the id of their key;
    `keys_missing` has, by id, why a key can't be used here.
    """

    blocks: int = 0
    bytes: int = 0
    lost: list[LostBlock] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    replicas: list[ReplicaReport] = field(default_factory=list)
    keys: dict[str, int] = field(default_factory=dict)
    keys_missing: dict[str, str] = field(default_factory=dict)
    state_frames: int = 0
    lost_states: list[LostState] = field(default_factory=list)

    @property
    def intact(self) -> bool:
        """Return whether every block and state can be read in every replica, and every file is known."""
        return not (self.lost or self.lost_states or self.orphans or self.missing or self.keys_missing) and all(
            replica.intact for replica in self.replicas
        )


def verify_blocks(
    connection: sa.Connection,
    store: BlockStore,
    *,
    keys: BlockKeys | None = None,
    on_block: Callable[[], None] = lambda: None,
) -> BlockReport:
    """Read every block and compare every checksum; call `on_block` after each, for a progress bar.

    `keys` are those that this process has references to.

    Raises the store's error if no replica can be reached.
    """
    report = BlockReport()
    keys = keys or BlockKeys()
    sites = [_FrameSite(replica, keys) for replica in replicas_of(store)]
    if len(sites) > 1:
        report.replicas = [site.report for site in sites]
    for site in sites:
        site.list_files(connection, alone=len(sites) == 1)
    files = set().union(*(site.files for site in sites))
    report.orphans = sorted(set().union(*(site.report.orphans for site in sites)))
    # An open segment's row may exist before its file, and a marked one's file may be deleted before its row. A segment
    # whose first write failed has no frame.
    report.missing = sorted(
        segment.path
        for segment in segments(connection)
        if segment.state is SegmentState.SEALED and segment.length and segment.path not in files
    )
    for block in stored_blocks(connection):
        handle = block.handle
        problem = _problem_of(sites, report, block.path, handle.offset, handle.length, handle.crc32c)
        if problem:
            report.lost.append(LostBlock(block.receiver_id, block.sequence, block.path, problem))
        report.blocks += 1
        report.bytes += handle.length
        on_block()
    for version in state_frames(connection):
        for _, path, offset, length, crc32c, *_ in version.frames:
            problem = _problem_of(sites, report, path, offset, length, crc32c)
            if problem:
                report.lost_states.append(
                    LostState(version.pipeline, version.output, version.batch_time, path, problem)
                )
            report.state_frames += 1
    return report


def _problem_of(
    sites: Sequence[_FrameSite], report: BlockReport, path: str, offset: int, length: int, crc32c: int
) -> str:
    """Return why no replica can give a frame; empty if one can. Notes which replicas lack it, and its key."""
    locked: dict[str, str] = {}
    reachable = [site for site in sites if not site.report.unreachable]
    problems = [site.problem_of(path, offset, length, crc32c, locked) for site in reachable]
    for key_id, why in locked.items():
        report.keys[key_id] = report.keys.get(key_id, 0) + 1
        if why:
            report.keys_missing.setdefault(key_id, why)
    if all(problems):
        return "; ".join(problem for problem in problems if problem) or "no replica can be reached"
    for site, problem in zip(reachable, problems, strict=True):
        if problem:
            site.report.lacking[path] = site.report.lacking.get(path, 0) + 1
    return ""


class _FrameSite:
    """Verify one replica."""

    def __init__(self, replica: Replica, keys: BlockKeys) -> None:
        self.replica = replica
        self._keys = keys
        self.report = ReplicaReport(replica.name)
        self.files: set[str] = set()

    def list_files(self, connection: sa.Connection, *, alone: bool) -> None:
        """List the files, then the rows: a row is written before its file, so a file without a row now is an orphan."""
        try:
            self.files = set(self.replica.segment_paths())
        except _FAILURES as error:
            if alone:
                raise
            self.report.unreachable = str(error)
        self.report.orphans = sorted(_orphans(connection, sorted(self.files)))

    def problem_of(self, path: str, offset: int, length: int, crc32c: int, locked: dict[str, str]) -> str:
        """Return why a block can't be read here; empty if it can.

        Sets in `locked`, by the id of an encrypted block's key, why the key is missing; empty if it is there.
        """
        try:
            frame = self.replica.read_frame(path, offset, length, crc32c)
            if frame.header.encrypted:
                key_id = key_id_of(frame.payload)
                locked[key_id] = ""
                content_of(frame, path, offset, self._keys)
        except BlockKeyError as error:
            # The same in every replica, and no replica's problem.
            locked[error.key_id] = error.detail
        except _FAILURES as error:
            return str(error)
        return ""


@dataclass(frozen=True, slots=True)
class Repair:
    """Hold what was done: orphans moved aside (old and new path), rows of empty segments deleted, segments copied.

    `copied` has (replica, path); `not_copied` (replica, path, why).
    """

    moved: list[tuple[str, str]]
    forgotten: list[str]
    copied: list[tuple[str, str]]
    not_copied: list[tuple[str, str, str]]


def repair_blocks(connection: sa.Connection, store: BlockStore, report: BlockReport) -> Repair:
    """Copy to replicas what they lack, move orphans aside and delete rows of segments that nothing needs.

    Blocks that no replica has stay lost.
    """
    replicas = replicas_of(store)
    moved = []
    still = set(_orphans(connection, report.orphans))
    orphans = [item.orphans for item in report.replicas] or [report.orphans]
    for replica, paths in zip(replicas, orphans, strict=True):
        moved += [(path, replica.set_aside(path)) for path in paths if path in still]
    missing = set(report.missing)
    forgotten = [
        segment.path
        for segment in segments(connection)
        if segment.path in missing and forget_empty_segment(connection, segment.segment_id)
    ]
    repair = Repair(moved, forgotten, [], [])
    lengths = {segment.path: segment.length for segment in segments(connection) if segment.state is SegmentState.SEALED}
    if any(item.lacking for item in report.replicas):
        lengths |= _lengths_of_states(connection)
    for replica, item in zip(replicas, report.replicas, strict=False):
        for path in sorted(item.lacking):
            length = lengths.get(path)
            if length is None:
                repair.not_copied.append((item.name, path, "it is being written, or being deleted: repair again later"))
                continue
            try:
                replica.restore_segment(path, _good_copy(replicas, path, length))
            except _FAILURES as error:
                repair.not_copied.append((item.name, path, str(error)))
            else:
                repair.copied.append((item.name, path))
    return repair


def _lengths_of_states(connection: sa.Connection) -> dict[str, int | None]:
    """Return up to where each file of a state has frames that count."""
    lengths: dict[str, int | None] = {}
    for version in state_frames(connection):
        for _, path, offset, length, *_ in version.frames:
            lengths[path] = max(lengths.get(path) or 0, offset + length)
    return lengths


def _good_copy(replicas: Sequence[Replica], path: str, length: int) -> Iterator[tuple[int, bytes]]:
    """Yield every frame of a sealed segment that any replica has intact, as (offset, bytes), in order."""
    found: dict[int, tuple[IntactFrame, Replica]] = {}
    for replica in replicas:
        try:
            for item in replica.scan(path):
                if isinstance(item, IntactFrame) and item.offset + item.length <= length:
                    found.setdefault(item.offset, (item, replica))
        except _FAILURES:
            # It lacks the segment, or is unavailable: the others have it.
            continue
    for offset in sorted(found):
        frame, replica = found[offset]
        yield offset, replica.read_frame(path, offset, frame.length, frame.crc32c).data


def _orphans(connection: sa.Connection, paths: list[str]) -> list[str]:
    unknown: list[str] = []
    for start in range(0, len(paths), _PATHS_PER_QUERY):
        page = paths[start : start + _PATHS_PER_QUERY]
        known = segment_paths_known(connection, page)
        folders = {path.rpartition("/")[0] for path in page if path.startswith(f"{STATES}/")}
        if folders:
            written = state_folders_known(connection, sorted(folders))
            known |= {path for path in page if path.rpartition("/")[0] in written}
        unknown += [path for path in page if path not in known]
    return unknown
