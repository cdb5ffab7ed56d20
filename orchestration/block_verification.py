"""Holds the block store against the driver log: what is missing, what is damaged, what nobody knows.

Reads every registered block and its checksum, so it takes as long as the disk does. Repairing never deletes: a file
that no row names is moved aside, and what can't be repaired is named.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from receiver_runtime.block_store.errors import BlockStoreError
from tracker_store.schema import SegmentState
from tracker_store.stored_blocks import (
    forget_empty_segment,
    segment_paths_known,
    segments,
    stored_blocks,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import sqlalchemy as sa

    from receiver_runtime.block_store.local import LocalBlockStore

_PATHS_PER_QUERY = 1_000


@dataclass(frozen=True, slots=True)
class LostBlock:
    """A registered block whose bytes are missing or damaged."""

    receiver_id: int
    sequence: int
    path: str
    problem: str


@dataclass(slots=True)
class BlockReport:
    """What was found. `orphans` are files that no row names, `missing` segments whose file is not there."""

    blocks: int = 0
    bytes: int = 0
    lost: list[LostBlock] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    @property
    def intact(self) -> bool:
        """Whether every registered block can be read, and every file is known."""
        return not (self.lost or self.orphans or self.missing)


def verify_blocks(
    connection: sa.Connection, store: LocalBlockStore, *, on_block: Callable[[], None] = lambda: None
) -> BlockReport:
    """Read every block and compare every checksum; `on_block` is called after each, for a progress bar."""
    report = BlockReport()
    files = set(store.segment_paths())
    # Files were listed first, and a row comes before its file: what has no row now is nobody's.
    report.orphans = sorted(_orphans(connection, sorted(files)))
    # An open segment's row may be there before its file; a marked one's file may be gone before its row.
    report.missing = sorted(
        segment.path
        for segment in segments(connection)
        if segment.state is SegmentState.SEALED and segment.path not in files
    )
    for block in stored_blocks(connection):
        handle = block.handle
        try:
            store.read_frame(block.path, handle.offset, handle.length, handle.crc32c)
        except BlockStoreError as error:
            report.lost.append(LostBlock(block.receiver_id, block.sequence, block.path, str(error)))
        report.blocks += 1
        report.bytes += handle.length
        on_block()
    return report


@dataclass(frozen=True, slots=True)
class Repair:
    """What was done: orphans moved aside (old and new path), rows of empty segments forgotten."""

    moved: list[tuple[str, str]]
    forgotten: list[str]


def repair_blocks(connection: sa.Connection, store: LocalBlockStore, report: BlockReport) -> Repair:
    """Move orphans aside and forget segments that nothing needs; lost blocks stay as they are, and are named."""
    moved = [(path, store.set_aside(path)) for path in _orphans(connection, report.orphans)]
    missing = set(report.missing)
    forgotten = [
        segment.path
        for segment in segments(connection)
        if segment.path in missing and forget_empty_segment(connection, segment.segment_id)
    ]
    return Repair(moved, forgotten)


def _orphans(connection: sa.Connection, paths: list[str]) -> list[str]:
    unknown: list[str] = []
    for start in range(0, len(paths), _PATHS_PER_QUERY):
        page = paths[start : start + _PATHS_PER_QUERY]
        known = segment_paths_known(connection, page)
        unknown += [path for path in page if path not in known]
    return unknown
