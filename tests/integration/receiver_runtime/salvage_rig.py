"""Lives of one receiver on a real driver log and real files; each life may end between any two of its steps."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import sqlalchemy as sa

from receiver_runtime.block_path.block_handler import BlockHandler, DeadLetter
from receiver_runtime.block_path.recovery.salvage import salvage, store_location
from receiver_runtime.block_path.registration.registered_through import RegisteredThrough
from receiver_runtime.block_path.write_ahead_log import WriteAheadLog
from receiver_runtime.block_store.frames import frame
from receiver_runtime.block_store.frames.encryption import BlockKeys
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.block_store.frames.reading import letters_of
from receiver_runtime.block_store.frames.segment import IntactFrame
from receiver_runtime.block_store.stores.local import LocalBlockStore
from receiver_runtime.reporting.driver_log import DriverLog
from receiver_runtime.reporting.receiver_driver_log import ReceiverDriverLog
from receiver_runtime.sources.receiver_settings import ReceiverSettings
from receiver_runtime.sources.source import SourceRule
from tests.support.driver_log.log import claim_anew, make_log
from tracker_store.blocks.blocks import AddOutcome, ChannelMove, Claim, NewBlock, add_blocks
from tracker_store.connection.engine import connect
from tracker_store.reports.checks import check_data

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from receiver_runtime.block_store.frames.files import Files

SCHEMA = pa.schema([("value", pa.string())])
HOST = "here"

T = TypeVar("T")


class KilledError(Exception):
    """The process was killed here."""


class MortalDriverLog(DriverLog):
    """A driver log that answers this number of calls; after that its process counts as killed."""

    def __init__(self, engine: sa.Engine, *, calls: int) -> None:
        super().__init__(engine)
        self.calls = calls

    def once(self, statement: Callable[[sa.Connection], T]) -> T:
        if self.calls == 0:
            raise KilledError
        self.calls -= 1
        return super().once(statement)


@dataclass
class Life:
    """One process of the receiver, from its claim on."""

    receiver: SalvagedReceiver
    claim: Claim
    store: LocalBlockStore
    handler: BlockHandler
    rows: ReceiverDriverLog
    stored: list[NewBlock] = field(default_factory=list)
    # The source rule of its blocks, where it differs from the rule of the log.
    rule: frame.SourceRule | None = None

    @property
    def registered_through(self) -> int:
        return self.handler.registered_through.sequence

    @property
    def next_sequence(self) -> int:
        return (self.stored[-1].sequence if self.stored else self.claim.sequence) + 1

    def keep(self, *values: str, moves: Sequence[ChannelMove] = ()) -> NewBlock:
        """Store and sync a block without registering it."""
        batch = pa.record_batch([pa.array(values, pa.string())], schema=SCHEMA)
        block = self.handler.store_block([batch], sequence=self.next_sequence, source_rule=self.rule, moves=moves)
        block = replace(block, moves=tuple(moves))
        self.stored.append(block)
        return block

    def move_alone(self, *moves: ChannelMove) -> None:
        """Move channels without a block, as for dead letters alone."""
        note = self.handler.note_moves(moves, sequence=self.next_sequence)
        assert self.rows.move_channels(moves)
        self.handler.moves_recorded(note)

    def keep_dead_letter(self, *data: bytes) -> None:
        """Store dead letters, a group, without their row."""
        self.handler.store_dead_letters(
            [DeadLetter(DeadLetterReason.INVALID_ENCODING, one) for one in data],
            sequence=self.next_sequence - 1,
        )

    def register(self, count: int = 1000) -> AddOutcome | None:
        """Register at most `count` of the stored blocks; return None if there are none."""
        waiting = [block for block in self.stored if block.sequence > self.registered_through][:count]
        if not waiting:
            return None
        with connect(self.receiver.engine) as connection:
            [result] = add_blocks(connection, waiting)
        if result.outcome in (AddOutcome.ADDED, AddOutcome.ALREADY_ADDED):
            self.handler.registered_through.sequence = waiting[-1].sequence
        return result.outcome

    def close(self) -> None:
        """End as a fenced or drained process does."""
        self.handler.close()


@dataclass
class SalvagedReceiver:
    """One receiver of its own stream."""

    engine: sa.Engine
    root: Path
    receiver_id: int
    pipeline_id: int
    # How long a salvage waits for another receiver's.
    gap_seconds: float = 0.0

    @classmethod
    def make(cls, engine: sa.Engine, root: Path, name: str = "lines") -> SalvagedReceiver:
        with connect(engine) as connection:
            log = make_log(connection, stream=name, pipeline=f"{name}_pipeline")
            [(receiver_id,)] = connection.execute(
                sa.text("SELECT id FROM forebay.receivers WHERE stream_id = :s"), {"s": log.stream_id}
            ).all()
        return cls(engine, root, receiver_id, log.pipeline_id)

    def execute(self, statement: str, **values: object) -> list[Any]:
        with connect(self.engine) as connection:
            result = connection.execute(sa.text(statement), {"r": self.receiver_id} | values)
            return list(result) if result.returns_rows else []

    def claim(self) -> Claim:
        with connect(self.engine) as connection:
            return claim_anew(connection, self.receiver_id)

    def salvage(
        self, claimed: Claim, *, driver_log: DriverLog | None = None, host: str = HOST, root: Path | None = None
    ) -> Claim:
        store = LocalBlockStore(root or self.root)
        return salvage(
            driver_log or DriverLog(self.engine),
            store,
            claimed=claimed,
            location=store_location(host, store),
            gap_seconds=self.gap_seconds,
        )

    def live(
        self,
        claimed: Claim | None = None,
        *,
        rule: SourceRule = SourceRule.NOT_SENT_AGAIN,
        durability: str = "durable",
        files: Files | None = None,
        max_segment_bytes: int = 1 << 20,
    ) -> Life:
        """Return a process that has claimed; it has also salvaged, unless its claim is given."""
        claimed = self.salvage(self.claim()) if claimed is None else claimed
        store = LocalBlockStore(self.root, files=files)
        rows = ReceiverDriverLog(
            DriverLog(self.engine),
            claim=claimed,
            durability=durability,
            store=store_location(HOST, store),
        )
        log = WriteAheadLog(
            store,
            rows,
            source_rule=frame.SourceRule[rule.name],
            registered_through=RegisteredThrough(claimed.sequence),
            settings=ReceiverSettings.model_construct(max_segment_bytes=max_segment_bytes),
        )
        return Life(self, claimed, store, BlockHandler(log, SCHEMA), rows)

    def rule_of(self, life: Life, rule: SourceRule) -> None:
        """Give this life's next blocks another rule, as a source with two kinds of requests does."""
        life.rule = frame.SourceRule[rule.name]

    # -- what came out -----------------------------------------------------------------------------------------------

    def blocks(self) -> list[list[str]]:
        """Return the values of each registered block in order, read by its handle."""
        store = LocalBlockStore(self.root)
        rows = self.execute(
            'SELECT g.path, b."offset", b.length, b.crc32c, b.records FROM forebay.blocks b '
            "JOIN forebay.log_segments g ON g.id = b.segment_id WHERE b.receiver_id = :r ORDER BY b.sequence"
        )
        found = []
        for path, offset, length, crc32c, records in rows:
            batches = store.read_batches(path, offset, length, crc32c)
            values = [value for batch in batches for value in batch["value"].to_pylist()]
            assert len(values) == records
            found.append(values)
        return found

    def dead_letters(self) -> list[bytes]:
        store = LocalBlockStore(self.root)
        found = []
        for letters, nbytes, *at in self.execute(
            'SELECT d.letters, d.bytes, g.path, d."offset", d.length, d.crc32c FROM forebay.dead_letters d '
            "JOIN forebay.log_segments g ON g.id = d.segment_id WHERE d.receiver_id = :r ORDER BY d.id"
        ):
            of_row = letters_of(store.read_frame(*at), at[0], at[1], BlockKeys())
            assert (len(of_row), sum(map(len, of_row))) == (letters, nbytes)
            found += of_row
        return found

    def segments(self) -> list[tuple[str, int | None]]:
        rows = self.execute("SELECT state, length FROM forebay.log_segments WHERE receiver_id = :r ORDER BY id")
        return [(row.state, row.length) for row in rows]

    def paths(self) -> list[str]:
        return [
            row.path for row in self.execute("SELECT path FROM forebay.log_segments WHERE receiver_id = :r ORDER BY id")
        ]

    def frames(self, path: str) -> list[IntactFrame]:
        return [item for item in LocalBlockStore(self.root).scan(path) if isinstance(item, IntactFrame)]

    def events(self, kind: str) -> list[str]:
        return [
            row.detail
            for row in self.execute(
                "SELECT detail FROM forebay.receiver_events WHERE receiver_id = :r AND kind = :k ORDER BY id", k=kind
            )
        ]

    def check(self) -> None:
        """Check that every promise of the driver log holds."""
        with connect(self.engine) as connection:
            assert [result for result in check_data(connection) if not result.passed] == []
