"""Run a stream of any source in real processes on a real driver log, and read the records that they stored."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from forebay.testing.receiver_processes import ReceiverProcesses
from orchestration.declarations.pipeline import stored_source
from receiver_runtime.block_store.frames.frame import FrameKind
from receiver_runtime.block_store.frames.segment import IntactFrame
from receiver_runtime.block_store.stores.stores import open_block_store
from tracker_store.batches.pipelines import apply_stream
from tracker_store.connection.engine import connect, create_engine
from tracker_store.receivers.receivers import placements, receiver_events
from tracker_store.reports.checks import check_data

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from receiver_runtime.sources.records.declared import Records
    from receiver_runtime.sources.source import Source
    from tracker_store.schema.states import ReceiverEventKind

    #: Make the rig of a source; keywords are `SourceRig.make`'s.
    MakeRig = Callable[..., "SourceRig"]


@dataclass
class SourceRig(ReceiverProcesses):
    """Hold one stream, its receivers by number from 0, and the processes started for them."""

    receiver_ids: list[int]

    @classmethod
    def make(
        cls,
        database_url: str,
        root: Path,
        source: Source,
        *,
        records: Records | None = None,
        receivers: int = 1,
        stream: str = "records",
        **settings: Any,  # noqa: ANN401  of the stream
    ) -> Self:
        engine = create_engine(database_url, application_name="tests")
        declaration = {
            "source": stored_source(source, records),
            "settings": {"block_interval": "50ms", "receiver_restart_delay": "50ms", **settings},
        }
        with connect(engine) as connection:
            before = {placement.receiver_id for placement in placements(connection)}
            apply_stream(connection, name=stream, declaration=declaration, receivers=receivers)
            ids = sorted({placement.receiver_id for placement in placements(connection)} - before)
        return cls(database_url, root, engine, ids)

    def assign(self, assignment: int, number: int = 0) -> None:
        self.place(self.receiver_ids[number], assignment)

    def start(
        self, number: int = 0, *, assignment: int = 1, database_url: str | None = None, first: str = ""
    ) -> subprocess.Popen[bytes]:
        """Place a receiver and start a process for it; its interpreter runs the code `first` first (a test's seam)."""
        self.assign(assignment, number)
        return self.spawn(
            self.receiver_ids[number],
            assignment,
            block_store=str(self.root / "blocks"),
            database_url=database_url,
            first=first,
        )

    def registered(self) -> int:
        [(records,)] = self.execute(
            "SELECT coalesce(sum(records), 0) FROM forebay.blocks WHERE receiver_id = ANY (:ids)", ids=self.receiver_ids
        )
        return int(records)

    def states(self) -> list[str]:
        """Return the states of the receivers, by number."""
        rows = self.execute(
            "SELECT state FROM forebay.receivers WHERE id = ANY (:ids) ORDER BY id", ids=self.receiver_ids
        )
        return [state for (state,) in rows]

    def reason(self, number: int = 0) -> str:
        """Return the reason for a receiver's state."""
        [(reason,)] = self.execute("SELECT reason FROM forebay.receivers WHERE id = :id", id=self.receiver_ids[number])
        return str(reason)

    def registered_of(self, number: int) -> int:
        [(records,)] = self.execute(
            "SELECT coalesce(sum(records), 0) FROM forebay.blocks WHERE receiver_id = :id", id=self.receiver_ids[number]
        )
        return int(records)

    def links(self) -> list[Any]:
        """Return the links of the stream's partitions, in order."""
        return self.execute(
            "SELECT source, partition, generation, from_offset, to_offset, kind FROM forebay.block_offsets "
            "WHERE stream_id = (SELECT stream_id FROM forebay.receivers WHERE id = :id) ORDER BY 1, 2, 3, 4",
            id=self.receiver_ids[0],
        )

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of every registered block, by receiver and sequence."""
        return [row for batch in self._batches() for row in batch.to_pylist()]

    def columns(self, names: list[str]) -> pa.Table:
        """Return columns of every registered block, for tests with too many records for Python objects."""
        return pa.Table.from_batches([batch.select(names) for batch in self._batches()])

    def _batches(self) -> Iterator[pa.RecordBatch]:
        store = open_block_store(str(self.root / "blocks"))
        for row in self.execute(
            'SELECT b.records, s.path, b."offset", b.length, b.crc32c FROM forebay.blocks b '
            "JOIN forebay.log_segments s ON s.id = b.segment_id WHERE b.receiver_id = ANY (:ids) "
            "ORDER BY b.receiver_id, b.sequence",
            ids=self.receiver_ids,
        ):
            found = 0
            for batch in store.read_batches(row.path, row.offset, row.length, row.crc32c):
                found += batch.num_rows
                yield batch
            assert found == row.records

    def unread(self) -> int:
        """Return how much the source has that is not read, as the receivers have said; -1: they have not."""
        [(unread,)] = self.execute(
            "SELECT coalesce(sum(unread), -1) FROM forebay.receiver_status WHERE receiver_id = ANY (:ids)",
            ids=self.receiver_ids,
        )
        return int(unread)

    def source_end(self) -> int:
        """Return the sum of how far the source goes, as the receivers have said: positions, or how much is unread."""
        [(end,)] = self.execute(
            "SELECT coalesce(sum(coalesce(source_position, unread)), 0) FROM forebay.source_lag "
            "WHERE receiver_id = ANY (:ids) AND unread > 0",
            ids=self.receiver_ids,
        )
        return int(end)

    def stored_frames(self) -> int:
        """Return the number of frames in all files, registered or not."""
        store = open_block_store(str(self.root / "blocks"))
        paths = [str(path.relative_to(self.root / "blocks")) for path in (self.root / "blocks").rglob("*.segment")]
        return sum(
            isinstance(item, IntactFrame) and item.header.kind is not FrameKind.NOTE
            for path in paths
            for item in store.scan(path)
        )

    def dead_letters(self) -> int:
        """Return the number of records that went aside."""
        [(letters,)] = self.execute("SELECT coalesce(sum(letters), 0) FROM forebay.dead_letters WHERE part = 0")
        return int(letters)

    def registered_blocks(self) -> int:
        [(blocks,)] = self.execute(
            "SELECT count(*) FROM forebay.blocks WHERE segment_id IS NOT NULL AND receiver_id = ANY (:ids)",
            ids=self.receiver_ids,
        )
        return int(blocks)

    def events(self, number: int = 0) -> list[tuple[ReceiverEventKind, str, str]]:
        with connect(self.engine) as connection:
            return list(receiver_events(connection, self.receiver_ids[number]))

    def said(self, words: str) -> bool:
        """Return whether any receiver's event contains these words."""
        return any(
            words in f"{message} {detail}"
            for n in range(len(self.receiver_ids))
            for _, message, detail in self.events(n)
        )

    def failed_checks(self) -> list[object]:
        with connect(self.engine) as connection:
            return [result for result in check_data(connection) if not result.passed]


@contextmanager
def make_rigs(database_url: str, root: Path, kind: type[SourceRig] = SourceRig) -> Iterator[MakeRig]:
    """Give a function that makes rigs by ``SourceRig.make``; close them all at the end, and print their logs."""
    made: list[SourceRig] = []

    def make(source: Source, **settings: Any) -> SourceRig:  # noqa: ANN401  of the stream
        rig = kind.make(database_url, root / f"rig-{len(made)}", source, stream=f"s{len(made)}", **settings)
        made.append(rig)
        return rig

    try:
        yield make
    finally:
        for rig in made:
            rig.close()
