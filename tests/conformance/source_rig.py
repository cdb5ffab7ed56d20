"""A stream of any source with its receivers, in real processes on a real driver log; and what came out of it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import sqlalchemy as sa

from receiver_runtime.block_store.segment import IntactFrame
from receiver_runtime.block_store.stores import open_block_store
from tests import polling
from tracker_store.checks import check_data
from tracker_store.engine import connect, create_engine
from tracker_store.pipelines import apply_stream
from tracker_store.receivers import placements, receiver_events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from receiver_runtime.sources.base import Source
    from tracker_store.schema import ReceiverEventKind

DEADLINE_SECONDS = 90.0

_RUN = """
import sys
from receiver_runtime.receiver_process import run
receiver_id, assignment, database_url, block_store = sys.argv[1:]
sys.exit(run([(int(receiver_id), int(assignment))], database_url=database_url, block_store=block_store))
"""


def eventually(predicate: Callable[[], object], what: str, *, seconds: float = DEADLINE_SECONDS) -> None:
    """Poll until `predicate` holds."""
    polling.eventually(predicate, what, seconds=seconds, step=0.05)


@dataclass
class SourceRig:
    """One stream, its receivers by number from 0, and the processes started for them."""

    database_url: str
    root: Path
    engine: sa.Engine
    receiver_ids: list[int]
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @classmethod
    def make(
        cls,
        database_url: str,
        root: Path,
        source: Source,
        *,
        receivers: int = 1,
        stream: str = "records",
        **settings: Any,  # noqa: ANN401  of the stream
    ) -> SourceRig:
        engine = create_engine(database_url, application_name="tests")
        declaration = {
            "source": source.model_dump(mode="json"),
            "settings": {"block_interval": "50ms", "receiver_restart_delay": "50ms", **settings},
        }
        with connect(engine) as connection:
            before = {placement.receiver_id for placement in placements(connection)}
            apply_stream(connection, name=stream, declaration=declaration, receivers=receivers)
            ids = sorted({placement.receiver_id for placement in placements(connection)} - before)
        return cls(database_url, root, engine, ids)

    def execute(self, statement: str, **values: object) -> list[Any]:
        with connect(self.engine) as connection:
            result = connection.execute(sa.text(statement), values)
            return list(result) if result.returns_rows else []

    def assign(self, assignment: int, number: int = 0) -> None:
        self.execute(
            "UPDATE forebay.receivers SET assignment = :a, state = 'SCHEDULED' WHERE id = :r",
            a=assignment,
            r=self.receiver_ids[number],
        )

    def start(
        self, number: int = 0, *, assignment: int = 1, database_url: str | None = None, first: str = ""
    ) -> subprocess.Popen[bytes]:
        """A process for a receiver, placed anew; `first` is what its interpreter runs before (a test's seam)."""
        self.assign(assignment, number)
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / f"process-{len(self.processes)}.log").open("wb") as log:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-c", first + _RUN, str(self.receiver_ids[number]), str(assignment)),
                    *(database_url or self.database_url, str(self.root / "blocks")),
                ],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            if process.stdin is not None:
                process.stdin.close()
        self.engine.dispose()

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.root.glob("process-*.log")))

    def registered(self) -> int:
        [(records,)] = self.execute(
            "SELECT coalesce(sum(records), 0) FROM forebay.blocks WHERE receiver_id = ANY (:ids)", ids=self.receiver_ids
        )
        return int(records)

    def states(self) -> list[str]:
        """Of the receivers, by number."""
        rows = self.execute(
            "SELECT state FROM forebay.receivers WHERE id = ANY (:ids) ORDER BY id", ids=self.receiver_ids
        )
        return [state for (state,) in rows]

    def registered_of(self, number: int) -> int:
        [(records,)] = self.execute(
            "SELECT coalesce(sum(records), 0) FROM forebay.blocks WHERE receiver_id = :id", id=self.receiver_ids[number]
        )
        return int(records)

    def links(self) -> list[Any]:
        """Of the stream's partitions, in order."""
        return self.execute(
            "SELECT source, partition, generation, from_offset, to_offset, kind FROM forebay.block_offsets "
            "WHERE stream_id = (SELECT stream_id FROM forebay.receivers WHERE id = :id) ORDER BY 1, 2, 3, 4",
            id=self.receiver_ids[0],
        )

    def rows(self) -> list[dict[str, Any]]:
        """Of every registered block, by receiver and sequence."""
        return [row for batch in self._batches() for row in batch.to_pylist()]

    def columns(self, names: list[str]) -> pa.Table:
        """Of every registered block; for more records than objects are to be made of."""
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

    def stored_frames(self) -> int:
        """In all files, whether registered or not."""
        store = open_block_store(str(self.root / "blocks"))
        paths = [str(path.relative_to(self.root / "blocks")) for path in (self.root / "blocks").rglob("*.segment")]
        return sum(isinstance(item, IntactFrame) for path in paths for item in store.scan(path))

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
        """Does any receiver's event have these words?"""
        return any(
            words in f"{message} {detail}"
            for n in range(len(self.receiver_ids))
            for _, message, detail in self.events(n)
        )

    def failed_checks(self) -> list[object]:
        with connect(self.engine) as connection:
            return [result for result in check_data(connection) if not result.passed]
