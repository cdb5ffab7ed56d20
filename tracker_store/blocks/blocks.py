"""Call `add_block` and `claim`, the statements on the chain of blocks that is the fence.

See docs/explanation/driver-log.md. The database decides; ``functions/blocks/add_block.sql`` and
``functions/blocks/claim.sql`` say what may be trusted and for how long. Nothing here retries: the caller resolves an
unknown outcome by sending the identical blocks again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tracker_store.connection.engine import Prepared, fetch_prepared, named_failures
from tracker_store.connection.errors import (
    ChannelConflictError,
    ClaimLostError,
    DriverLogError,
    DuplicateKeysError,
    EmptyBlockError,
    NotAssignedError,
    OffsetConflictError,
    ReceiverFencedError,
    SequenceGapError,
    block_conflict,
)
from tracker_store.schema.states import DesiredState, LinkKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


@dataclass(frozen=True, slots=True)
class BlockHandle:
    """Locate a block's frame: `offset` and `length` in bytes within the segment's file."""

    segment_id: int
    offset: int
    length: int
    crc32c: int


# The `from_offset` of an origin link: nothing comes before it.
ORIGIN = -1


@dataclass(frozen=True, slots=True)
class OffsetLink:
    """One step of a source partition's position, from the log's exact position to `to_offset` (the next to read)."""

    source: str
    partition: str
    generation: int
    from_offset: int
    to_offset: int
    kind: LinkKind = LinkKind.BLOCK


@dataclass(frozen=True, slots=True)
class ChannelMove:
    """Move a sender's channel from the log's exact position to ``to_offset``; ``sender`` is empty without tokens."""

    sender: str
    channel: str
    from_offset: int
    to_offset: int


@dataclass(frozen=True, slots=True)
class Position:
    """Hold the position from which to read a source partition."""

    generation: int
    offset: int


@dataclass(frozen=True, slots=True)
class NewBlock:
    """Describe a stored block that is not registered yet. `bytes` counts the frame; `records` counts rows.

    `links`, `keys` (idempotency keys) and `moves` (of channels) are added together with the block, or it is not added.
    """

    receiver_id: int
    epoch: int
    sequence: int
    records: int
    bytes: int
    handle: BlockHandle
    links: tuple[OffsetLink, ...] = field(default=())
    keys: tuple[str, ...] = field(default=())
    moves: tuple[ChannelMove, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class ControlResponse:
    """Tell a receiver in each answer what to do: `rate_limit` in records/s (None: unlimited).

    A heartbeat's answer has the receiver's newest sequence, and the server and timeline, too.
    """

    receiver_id: int
    rate_limit: float | None
    desired_state: DesiredState
    assignment: int
    newest_sequence: int | None = field(default=None, compare=False)
    server: str | None = field(default=None, compare=False)


class AddOutcome(StrEnum):
    """Name the outcome of one receiver's blocks, in the order in which the cases are tested."""

    ADDED = "added"
    ALREADY_ADDED = "already added"
    FENCED = "fenced"
    CONFLICT = "conflict"
    OFFSET_CONFLICT = "offset conflict"
    DUPLICATE_KEYS = "duplicate keys"
    CHANNEL_CONFLICT = "channel conflict"
    GAP = "gap"
    AGAIN = "again"


_BUSY = "Try again in a moment: the claim was outrun by additions a thousand times."

_ERRORS: dict[AddOutcome, Callable[[str | None], DriverLogError]] = {
    AddOutcome.FENCED: ReceiverFencedError,
    AddOutcome.CONFLICT: block_conflict,
    AddOutcome.OFFSET_CONFLICT: OffsetConflictError,
    AddOutcome.DUPLICATE_KEYS: DuplicateKeysError,
    AddOutcome.CHANNEL_CONFLICT: ChannelConflictError,
    AddOutcome.GAP: SequenceGapError,
}


@dataclass(frozen=True, slots=True)
class AddResult:
    """One receiver's outcome: all of its blocks were added, or none was."""

    receiver_id: int
    outcome: AddOutcome
    detail: str | None
    response: ControlResponse


@dataclass(frozen=True, slots=True)
class Claim:
    """Hold an epoch that this process owns. `sequence` is the marker's; the first block takes the next.

    `server`: the server and timeline that answered the claim (None: not known). On another one the claim is over.
    """

    receiver_id: int
    epoch: int
    sequence: int
    server: str | None = field(default=None, compare=False)


_ANSWER = "outcome, detail, rate_limit, desired_state, assignment"
_ONE_TYPES = ("bigint",) * 9
_LINK_TYPES = ("text", "text", "integer", "bigint", "bigint", "text")
_BLOCK_TYPES = ("bigint[]",) * 9
_EXTRA_TYPES = (
    *("integer[]", "text[]", "text[]", "integer[]", "bigint[]", "bigint[]", "text[]"),
    *("integer[]", "text[]"),
    *("integer[]", "text[]", "text[]", "bigint[]", "bigint[]"),
)


_ADD_ONE = Prepared("forebay_add_block", "forebay.add_one_block", _ANSWER, _ONE_TYPES)
_ADD_ONE_LINKED = Prepared("forebay_add_block_linked", "forebay.add_one_block", _ANSWER, _ONE_TYPES + _LINK_TYPES)
_ADD_MANY = Prepared("forebay_add_blocks", "forebay.add_block", f"receiver_id, {_ANSWER}", _BLOCK_TYPES)
_ADD_MANY_WITH_EXTRAS = Prepared(
    "forebay_add_blocks_with_extras", "forebay.add_block", f"receiver_id, {_ANSWER}", _BLOCK_TYPES + _EXTRA_TYPES
)
_ARRAY_MARKS = ("%s",) * len(_BLOCK_TYPES)
_EXTRA_MARKS = tuple(f"%s::{kind}" if kind == "text[]" else "%s" for kind in _EXTRA_TYPES)


def _integers(values: Iterable[int]) -> str:
    """Return an array literal: the server parses it faster than the expression that psycopg2 makes of a list."""
    return f"{{{','.join(map(str, values))}}}"


def _arrays(ordered: Sequence[NewBlock]) -> list[object]:
    """Return the blocks as parallel arrays."""
    rows = [
        (
            *(block.receiver_id, block.epoch, block.sequence, block.records, block.bytes),
            *(block.handle.segment_id, block.handle.offset, block.handle.length, block.handle.crc32c),
        )
        for block in ordered
    ]
    return [_integers(column) for column in zip(*rows, strict=True)]


def _extras(ordered: Sequence[NewBlock]) -> list[object]:
    """Return the links, keys and moves of blocks as parallel arrays; positions of blocks count from 1."""
    links = [(n, link) for n, block in enumerate(ordered, start=1) for link in block.links]
    keys = [(n, key) for n, block in enumerate(ordered, start=1) for key in block.keys]
    return [
        _integers(n for n, _ in links),
        [link.source for _, link in links],
        [link.partition for _, link in links],
        _integers(link.generation for _, link in links),
        _integers(link.from_offset for _, link in links),
        _integers(link.to_offset for _, link in links),
        [link.kind.value for _, link in links],
        _integers(n for n, _ in keys),
        [key for _, key in keys],
        *move_arrays(ordered),
    ]


def move_arrays(ordered: Sequence[NewBlock]) -> list[object]:
    """Return the moves of blocks as parallel arrays: the blocks' positions from 1, senders, channels, from and to."""
    moves = [(n, move) for n, block in enumerate(ordered, start=1) for move in block.moves]
    return [
        _integers(n for n, _ in moves),
        [move.sender for _, move in moves],
        [move.channel for _, move in moves],
        _integers(move.from_offset for _, move in moves),
        _integers(move.to_offset for _, move in moves),
    ]


def add_blocks(connection: sa.Connection, blocks: Sequence[NewBlock]) -> list[AddResult]:
    """Register `blocks` of any number of receivers in one round trip, all or nothing per receiver.

    A receiver's blocks must be consecutive sequences of one epoch. Locks: the new rows' keys, in the order of
    (receiver, sequence), and the rows of channels that are moved. Raises EmptyBlockError for a block without records,
    before anything is sent; OutcomeUnknownError when the answer was lost; DriverLogUnavailableError, among others where
    another receiver moved a channel meanwhile; and SQLAlchemy's IntegrityError where another receiver of the call was
    first with the same link or key: send each receiver's blocks alone then, and the outcome is named.
    """
    if not blocks:
        return []
    for block in blocks:
        if block.records < 1:
            raise EmptyBlockError(
                f"block {block.sequence} of receiver {block.receiver_id}, in segment {block.handle.segment_id}, has "
                f"{block.records} records"
            )
    if len(blocks) == 1 and len(blocks[0].links) <= 1 and not blocks[0].keys and not blocks[0].moves:
        return [_add_one(connection, blocks[0])]
    ordered = sorted(blocks, key=attrgetter("receiver_id", "sequence"))
    statement, marks, values = _ADD_MANY, _ARRAY_MARKS, _arrays(ordered)
    if any(block.links or block.keys or block.moves for block in ordered):
        statement, marks = _ADD_MANY_WITH_EXTRAS, _ARRAY_MARKS + _EXTRA_MARKS
        values += _extras(ordered)
    with named_failures():
        rows = fetch_prepared(connection, statement, marks, values)
    return [_result(*row) for row in sorted(rows, key=itemgetter(0))]


def _add_one(connection: sa.Connection, block: NewBlock) -> AddResult:
    handle = block.handle
    # Only integers: there is nothing to quote.
    arguments = [
        *(f"{block.receiver_id:d}", f"{block.epoch:d}", f"{block.sequence:d}", f"{block.records:d}"),
        *(f"{block.bytes:d}", f"{handle.segment_id:d}", f"{handle.offset:d}", f"{handle.length:d}"),
        f"{handle.crc32c:d}",
    ]
    with named_failures():
        if not block.links:
            [row] = fetch_prepared(connection, _ADD_ONE, arguments)
        else:
            [link] = block.links
            arguments += ["%s", "%s", f"{link.generation:d}", f"{link.from_offset:d}", f"{link.to_offset:d}", "%s"]
            values = (link.source, link.partition, link.kind.value)
            [row] = fetch_prepared(connection, _ADD_ONE_LINKED, arguments, values)
    return _result(block.receiver_id, *row)


def _result(
    receiver_id: int,
    outcome: str,
    detail: str | None,
    rate_limit: float | None,
    desired_state: str | None,
    assignment: int | None,
) -> AddResult:
    if desired_state is None or assignment is None:
        # It has no row: it was removed long ago, and forgotten (``functions/receivers/forget_receivers.sql``).
        stopped = ControlResponse(receiver_id, None, DesiredState.STOPPED, 0)
        return AddResult(receiver_id, AddOutcome.FENCED, f"receiver {receiver_id} was removed, and forgotten", stopped)
    return AddResult(
        receiver_id,
        AddOutcome(outcome),
        detail,
        ControlResponse(receiver_id, rate_limit, DesiredState(desired_state), assignment),
    )


def raise_for_outcome(result: AddResult) -> None:
    """Raise the named error of a refusal. AGAIN passes: its caller sends the identical blocks again."""
    error = _ERRORS.get(result.outcome)
    if error is not None:
        raise error(result.detail)


def newest_epoch(connection: sa.Connection, receiver_id: int) -> int:
    """Return the epoch of the receiver's newest row, or 0 if it has none. No locks; one probe of the primary key."""
    with named_failures():
        epoch: int | None = connection.execute(
            sa.text("SELECT epoch FROM forebay.blocks WHERE receiver_id = :receiver ORDER BY sequence DESC LIMIT 1"),
            {"receiver": receiver_id},
        ).scalar()
    return epoch or 0


def claim(connection: sa.Connection, *, receiver_id: int, seen_epoch: int, assignment: int) -> Claim:
    """Take a receiver over: insert the marker row of a new epoch.

    Locks: the receiver's row FOR SHARE. Raises NotAssignedError, ClaimLostError, and OutcomeUnknownError, after which
    the epoch is *not* owned: read the newest epoch and claim again.
    """
    with named_failures():
        row = connection.execute(
            sa.text("""
                SELECT c.outcome, c.detail, c.epoch, c.sequence, forebay.server_timeline() AS server
                FROM forebay.claim(:receiver, :seen_epoch, :assignment) AS c
            """),
            {"receiver": receiver_id, "seen_epoch": seen_epoch, "assignment": assignment},
        ).one()
    if row.outcome == "claimed":
        return Claim(receiver_id, row.epoch, row.sequence, row.server)
    if row.outcome == "not assigned":
        raise NotAssignedError(row.detail)
    raise ClaimLostError(row.detail, _BUSY if row.outcome == "busy" else None)


def known_keys(connection: sa.Connection, *, receiver_id: int, keys: Sequence[str]) -> set[str]:
    """Return those of these idempotency keys that the receiver's stream has received within its window. No locks.

    For these keys a sender may be told that its records are stored; for the others only `add_blocks` decides.
    """
    with named_failures():
        found = connection.execute(
            sa.text("SELECT forebay.known_keys(:receiver, CAST(:keys AS text[]))"),
            {"receiver": receiver_id, "keys": list(keys)},
        ).scalars()
        return set(found)


def open_partition(
    connection: sa.Connection, *, receiver_id: int, source: str, partition: str, start_offset: int
) -> Position:
    """Return where to read a source partition from; its first call records `start_offset` as the origin.

    Later calls, by any receiver of the stream, return the log's present position. Locks: the origin's key.
    """
    with named_failures():
        row = connection.execute(
            sa.text("SELECT generation, to_offset FROM forebay.open_partition(:receiver, :source, :partition, :start)"),
            {"receiver": receiver_id, "source": source, "partition": partition, "start": start_offset},
        ).one()
    return Position(row.generation, row.to_offset)
