"""Test a receiver that is taken for dead while it holds its first block of a file, and another that reads the copy."""

from __future__ import annotations

import gzip
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.driver_log.log import add, block, claim_anew, make_log
from tests.unit.receiver_runtime.receivers.files.files_rig import Log
from tests.unit.receiver_runtime.receivers.files.followed.followed_rig import follow, write
from tracker_store.blocks.blocks import open_partition, raise_for_outcome
from tracker_store.blocks.source_positions import forget_partitions, source_positions
from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa
    import sqlalchemy as sa

    from tracker_store.blocks.blocks import OffsetLink, Position


class _Client(Log):
    """One receiver's client of a real driver log, in place of the chain in memory."""

    def __init__(self, connection: sa.Connection, receiver_id: int, rows: list[dict[str, Any]]) -> None:
        super().__init__(rows=rows, claim=claim_anew(connection, receiver_id))
        self._connection = connection
        self._next = self.claim.sequence + 1

    def open_partition(self, source: str, partition: str, start_offset: int) -> Position:
        return open_partition(
            self._connection,
            receiver_id=self.receiver_id,
            source=source,
            partition=partition,
            start_offset=start_offset,
        )

    def all_of(self, source: str) -> Mapping[str, Position]:
        return source_positions(self._connection, receiver_id=self.receiver_id, source=source)

    def forget(self, source: str, partitions: Sequence[str]) -> None:
        forget_partitions(self._connection, receiver_id=self.receiver_id, source=source, partitions=partitions)

    def add(self, batch: pa.RecordBatch, links: Sequence[OffsetLink]) -> None:
        new = block(self.claim, self._next, records=batch.num_rows)
        raise_for_outcome(add(self._connection, replace(new, links=tuple(links))))
        self._next += 1
        self.rows += batch.to_pylist()


@pytest.mark.parametrize("lines", [1, 3])
def test_lines_read_by_a_receiver_taken_for_dead_come_once(engine: sa.Engine, tmp_path: Path, lines: int) -> None:
    rows: list[dict[str, Any]] = []
    written = [f"line {number}" for number in range(lines)]
    with connect(engine) as one, connect(engine) as two:
        receivers = make_log(one, receivers=2).receiver_ids
        asleep = follow(tmp_path, _Client(one, receivers[0], rows))
        other = follow(tmp_path, _Client(two, receivers[1], rows))
        asleep.supervisor.holds = True
        write(tmp_path / "a.log", *written)
        asleep.step()
        (tmp_path / "a.log.1.gz").write_bytes(gzip.compress((tmp_path / "a.log").read_bytes()))
        # The renamed file keeps its inode, so that it is not reused.
        (tmp_path / "a.log").rename(tmp_path / "a")
        other.run(5)
        assert [row["value"] for row in rows] == written
        asleep.supervisor.register()
        asleep.supervisor.holds = False
        asleep.run(5)
        other.run(2)
    assert [row["value"] for row in rows] == written
    assert any("another receiver has read on" in error for error in asleep.supervisor.errors)
