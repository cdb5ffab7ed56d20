"""Test the rows that say what sources have: who may write them, what a report replaces, what the views make of it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from tests.support.driver_log.log import add, block, claim_anew, give_segments, make_log
from tracker_store.batches.streams import remove_stream
from tracker_store.blocks.blocks import OffsetLink, open_partition
from tracker_store.receivers.processes import register_process
from tracker_store.receivers.source_lag import LagReport, Unread, report_source_lag
from tracker_store.reports.streaming_statistics import receiver_counters
from tracker_store.schema.states import ProcessKind

if TYPE_CHECKING:
    from tests.support.driver_log.log import Log


class Rig:
    """Two receivers of a stream, each held by a process of its own."""

    def __init__(self, connection: sa.Connection) -> None:
        self.connection = connection
        self.log: Log = make_log(connection, receivers=2)
        give_segments(connection, *self.log.receiver_ids)
        self.processes = [
            register_process(connection, kind=ProcessKind.RECEIVER, name="lines", host="h", pid=n) for n in (1, 2)
        ]
        for process, receiver in zip(self.processes, self.log.receiver_ids, strict=True):
            connection.execute(
                sa.text("UPDATE forebay.receivers SET process_id = :process, state = 'ACTIVE' WHERE id = :id"),
                {"process": process, "id": receiver},
            )

    def report(
        self, number: int, unread: dict[str, Unread], *, whole: bool = False, gone: tuple[str, ...] = ()
    ) -> bool:
        receiver = self.log.receiver_ids[number]
        report = LagReport(
            receiver,
            whole=whole,
            unread={("orders", partition): one for partition, one in unread.items()},
            gone=[("orders", partition) for partition in gone],
        )
        recorded = report_source_lag(self.connection, process_id=self.processes[number], reports=[report])
        assert recorded <= {receiver}
        return bool(recorded)

    def rows(self) -> list[tuple[str, int, int]]:
        found = self.connection.execute(
            sa.text("SELECT partition, receiver_id, unread FROM forebay.source_lag ORDER BY partition")
        )
        return [(row.partition, self.log.receiver_ids.index(row.receiver_id), row.unread) for row in found]

    def view(self, name: str, order: str) -> list[dict[str, Any]]:
        found = self.connection.execute(sa.text(f"SELECT * FROM forebay.{name} ORDER BY {order}"))
        return [dict(row) for row in found.mappings()]


@pytest.fixture
def rig(connection: sa.Connection) -> Rig:
    return Rig(connection)


def records(amount: int, **more: Any) -> Unread:  # noqa: ANN401  fields of Unread
    return Unread(amount, "records", **more)


def test_a_report_changes_what_it_names_and_a_whole_one_replaces_the_receivers_rows(rig: Rig) -> None:
    assert rig.report(0, {"0": records(1), "1": records(2)}, whole=True)
    assert rig.report(1, {"2": records(3)}, whole=True)
    assert rig.report(0, {"1": records(5)}, gone=("0",))
    assert rig.rows() == [("1", 0, 5), ("2", 1, 3)]
    assert rig.report(0, {"4": records(6)}, whole=True)
    assert rig.rows() == [("2", 1, 3), ("4", 0, 6)]


def test_a_partition_that_another_receiver_took_over_stays_that_ones(rig: Rig) -> None:
    rig.report(0, {"0": records(1), "1": records(1)}, whole=True)
    rig.report(1, {"0": records(9)}, whole=True)
    rig.report(0, {}, gone=("0",))
    assert rig.rows() == [("0", 1, 9), ("1", 0, 1)]


def test_a_process_reports_only_for_receivers_that_it_holds(rig: Rig) -> None:
    rig.connection.execute(
        sa.text("UPDATE forebay.receivers SET process_id = NULL WHERE id = :id"), {"id": rig.log.receiver_ids[0]}
    )
    assert not rig.report(0, {"0": records(1)}, whole=True)
    assert rig.rows() == []


def test_a_receiver_that_is_removed_takes_its_rows_with_it(rig: Rig) -> None:
    rig.report(0, {"0": records(1)}, whole=True)
    rig.report(1, {"1": records(1)}, whole=True)
    rig.connection.execute(
        sa.text("UPDATE forebay.receivers SET removed_at = now() WHERE id = :id"), {"id": rig.log.receiver_ids[1]}
    )
    rig.report(0, {"0": records(2)}, whole=True)
    assert rig.rows() == [("0", 0, 2)]
    rig.log.connection.execute(sa.text("UPDATE forebay.pipelines SET removed_at = now()"))
    remove_stream(rig.connection, "lines", with_waiting=True)
    assert rig.rows() == []


def test_the_view_of_positions_says_what_the_source_has_beyond_them(rig: Rig) -> None:
    claim = claim_anew(rig.connection, rig.log.receiver_ids[0])
    for partition in ("0", "1"):
        open_partition(
            rig.connection, receiver_id=claim.receiver_id, source="orders", partition=partition, start_offset=100
        )
    rig.report(
        0,
        {
            "0": records(50, end=150, oldest_at=1_700_000_000.5),
            "1": records(0),
            "queue": Unread(7, "messages", redelivered=2),
        },
        whole=True,
    )

    def seen() -> list[tuple[object, ...]]:
        return [
            tuple(row[name] for name in ("partition", "position", "source_position", "unread", "unit", "redelivered"))
            for row in rig.view("source_progress", "partition")
        ]

    unchanged = [("1", 100, 100, 0, "records", None), ("queue", None, None, 7, "messages", 2)]
    assert seen() == [("0", 100, 150, 50, "records", None), *unchanged]
    # Between two reports, what is unread follows the registered position.
    link = OffsetLink("orders", "0", 0, 100, 130)
    made = block(claim, 2)
    assert add(rig.connection, type(made)(**{**_fields(made), "links": (link,)})).outcome == "added"
    assert seen() == [("0", 130, 150, 20, "records", None), *unchanged]
    first, second = rig.view("receiver_status", "ordinal")
    assert (first["partitions"], first["unread"], first["unread_unit"]) == (3, 57, "records")
    assert first["oldest_unread_at"].timestamp() == 1_700_000_000.5
    assert first["source_lag"].total_seconds() == pytest.approx(time.time() - 1_700_000_000.5, abs=60)
    assert (second["partitions"], second["unread"], second["oldest_unread_at"]) == (0, None, None)
    assert second["source_lag"] is None
    of_first, of_second = receiver_counters(rig.connection)
    assert (of_first.partitions, of_first.unread, of_first.unread_unit) == (3, 57, "records")
    assert of_first.source_lag == pytest.approx(time.time() - 1_700_000_000.5, abs=60)
    assert (of_second.partitions, of_second.unread, of_second.source_lag) == (0, None, None)
    rig.report(0, {"0": records(0), "queue": Unread(0, "messages")})
    assert receiver_counters(rig.connection)[0].source_lag == 0


def _fields(value: object) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}  # type: ignore[attr-defined]
