"""Check that the stress command's checker finds each broken rule: each is broken once, without the log's functions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg2
import pytest
import sqlalchemy as sa

from tests.stress.checker import ILLEGAL_MOVE, SAFETY, WITNESS, Acknowledged, check
from tests.support.driver_log.log import Log, add, block, claim_anew, make_log, new_segment
from tracker_store.batches import batches, outputs
from tracker_store.blocks.blocks import OffsetLink, open_partition
from tracker_store.receivers.processes import register_process
from tracker_store.retention.cleanup import clean_up_receiver
from tracker_store.schema.states import ProcessKind

if TYPE_CHECKING:
    from datetime import datetime


class CheckedLog:
    """A log with a witness, and one receiver of two epochs with three blocks each, in three batches."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.connection = log.connection
        self.connection.execute(sa.text(WITNESS))
        [self.receiver_id] = log.receiver_ids
        self.acknowledged: list[Acknowledged] = []
        for _ in range(2):
            self.claimed = claim_anew(self.connection, self.receiver_id)
            self.segment_id = new_segment(self.connection, self.claimed, str(self.claimed.epoch))
            for number in (1, 2, 3):
                self.add(self.claimed.sequence + number)
            self.time = self.run()
        self.run()

    def add(self, sequence: int) -> None:
        """Add a block with a link, and note it as acknowledged."""
        at = open_partition(
            self.connection, receiver_id=self.receiver_id, source="orders", partition="0", start_offset=7
        )
        added = replace(
            block(self.claimed, sequence, segment_id=self.segment_id),
            links=(OffsetLink("orders", "0", 0, at.offset, at.offset + 5),),
            keys=(f"key {sequence}",),
        )
        add(self.connection, added)
        self.acknowledged.append(
            Acknowledged(added.receiver_id, added.epoch, added.sequence, added.handle.crc32c),
        )

    def run(self) -> datetime:
        """Allocate the waiting blocks and run the batch to its end."""
        time: datetime = self.connection.execute(sa.text("SELECT clock_timestamp()")).scalar_one()
        self.log.tracker.allocate_blocks_to_batch(time)
        batch = batches.get_batch(self.connection, self.log.pipeline_id, time)
        assert batch is not None
        if batch.records:
            process_id = register_process(self.connection, kind=ProcessKind.BATCH_RUN, name="r", host="h", pid=1)
            key: dict[str, Any] = {"pipeline_id": self.log.pipeline_id, "batch_time": time, "attempt": 1}
            batches.claim_attempt(self.connection, **key, run_id="run", process_id=process_id)
            outputs.commit_output(self.connection, **key, output="counts", location="", rows=batch.records)
            batches.complete_batch(self.connection, **key, outputs=["counts"])
        return time

    def clean(self) -> None:
        """Clean up everything that may be deleted."""
        time: datetime = self.connection.execute(sa.text("SELECT clock_timestamp()")).scalar_one()
        clean_up_receiver(self.connection, receiver_id=self.receiver_id, threshold=time, max_rows=1000)

    def violations(self, *, cleaned: bool = False) -> set[str]:
        """Return the rules that the checker reports as broken."""
        url = sa.make_url(str(self.connection.engine.url.render_as_string(hide_password=False)))
        driver = psycopg2.connect(url.set(drivername="postgresql").render_as_string(hide_password=False))
        try:
            driver.autocommit = True
            return {violation.check for violation in check(driver, self.acknowledged, cleaned=cleaned)}
        finally:
            driver.close()


@pytest.fixture
def checked(connection: sa.Connection) -> CheckedLog:
    return CheckedLog(make_log(connection))


def test_an_intact_log_passes_before_and_after_clean_up(checked: CheckedLog) -> None:
    assert checked.violations() == set()
    assert checked.violations(cleaned=True) == {"a block stays that nobody can ask for"}
    checked.clean()
    assert checked.violations(cleaned=True) == set()


def test_a_gap_is_found(checked: CheckedLog) -> None:
    checked.connection.execute(sa.text("DELETE FROM forebay.blocks WHERE sequence = 3"))
    assert checked.violations() == {"a row above the low mark, a marker or the newest row is missing"}


def test_a_double_allocation_past_the_trigger_is_found(checked: CheckedLog) -> None:
    checked.connection.execute(sa.text("ALTER TABLE forebay.batch_allocations DISABLE TRIGGER ranges_change"))
    checked.connection.execute(
        sa.text("UPDATE forebay.batch_allocations SET sequences = int8range(4, 8, '[]') WHERE batch_time = :time"),
        {"time": checked.time},
    )
    assert checked.violations() >= {
        "ranges of a pipeline overlap or leave a block out",
        "a block is in two batches of one pipeline",
    }


def test_a_block_that_waits_behind_a_live_cursor_is_found(checked: CheckedLog) -> None:
    checked.add(9)
    assert checked.violations() == {"a block waits behind a live cursor"}
    checked.connection.execute(sa.text("UPDATE forebay.pipelines SET removed_at = clock_timestamp()"))
    assert checked.violations() == set()


def test_a_batch_that_never_ran_is_found(checked: CheckedLog) -> None:
    checked.add(9)
    time: datetime = checked.connection.execute(sa.text("SELECT clock_timestamp()")).scalar_one()
    checked.log.tracker.allocate_blocks_to_batch(time)
    assert checked.violations() == {"a batch is unfinished"}


@pytest.mark.parametrize(
    ("broken", "found"),
    [
        (
            # A cleaned-up block is registered again, as a retry once did.
            "INSERT INTO forebay.blocks SELECT * FROM witness.blocks WHERE sequence = 2",
            {
                "a sequence is missing or twice",
                "totals, times or epochs do not run on",
                "a block is registered twice",
                "a row is there that was cleaned away or never added",
                "a block is in two batches of one pipeline",
                "a range's counts are not its blocks'",
            },
        ),
        ("DELETE FROM witness.blocks WHERE sequence = 8", {"an acknowledged block is not in"}),
        ("UPDATE witness.blocks SET crc32c = 1 WHERE sequence = 2", {"an acknowledged block is not in"}),
        ("UPDATE witness.blocks SET total_records = 9 WHERE sequence = 3", {"totals, times or epochs do not run on"}),
        ("UPDATE witness.blocks SET epoch = 9 WHERE sequence = 6", {"totals, times or epochs do not run on"}),
        (
            "DELETE FROM witness.links WHERE sequence = 3",
            {"a source position is missing, twice, or without an origin"},
        ),
        (
            "DELETE FROM witness.links WHERE kind = 'origin'",
            {"a source position is missing, twice, or without an origin"},
        ),
        ("UPDATE witness.links SET sequence = 99 WHERE sequence = 3", {"a source position is without its block"}),
        ("DELETE FROM forebay.block_offsets WHERE sequence = 8", {"a partition's newest position is gone"}),
        ("UPDATE forebay.record_keys SET sequence = 99 WHERE sequence = 3", {"a key is of no block"}),
        ("UPDATE forebay.cursors SET next_sequence = 30", {"a cursor is not where its last range ended"}),
        (
            "UPDATE forebay.batch_allocations SET records = 9 WHERE lower(sequences) = 1",
            {"a range's counts are not its blocks'", "a batch's counts are not its ranges'"},
        ),
        (
            "UPDATE forebay.batches SET records = 9 WHERE records > 0",
            {"a batch's counts are not its ranges'", "a completed batch has not every record in its output"},
        ),
        (
            "UPDATE witness.blocks SET added_at = 'infinity' WHERE sequence = 8",
            {"a batch has a block that was added at its time or later"},
        ),
        (
            "UPDATE forebay.cursors SET next_sequence = 2",
            {"a block was cleaned away that a live pipeline had not finished"},
        ),
        ("DELETE FROM forebay.cleanup_events", {"events of clean-up do not cover what is gone"}),
        (
            "UPDATE forebay.batches SET state = 'QUARANTINED', completed_at = NULL WHERE records > 0",
            {"a quarantined batch's block is not kept"},
        ),
        ("DELETE FROM forebay.output_commits", {"a completed batch has not every record in its output"}),
        (
            "UPDATE forebay.log_segments SET kept_blocks = 1 WHERE id = (SELECT min(id) FROM forebay.log_segments)",
            {"a segment's kept blocks are miscounted"},
        ),
        ("DELETE FROM forebay.log_segments", {"a segment's row is gone and its blocks are not"}),
    ],
)
def test_each_broken_rule_is_found(checked: CheckedLog, broken: str, found: set[str]) -> None:
    checked.clean()
    checked.connection.execute(sa.text(broken))
    assert checked.violations() >= found


def test_an_illegal_move_is_found(checked: CheckedLog) -> None:
    for state in ("STOPPED", "RUNNING"):
        checked.connection.execute(sa.text("UPDATE forebay.pipelines SET state = :state"), {"state": state})
    assert checked.violations() == {ILLEGAL_MOVE}


def test_every_safety_rule_is_broken_above(request: pytest.FixtureRequest) -> None:
    """Check this because a rule whose query can't find anything is no rule."""
    [mark] = [mark for mark in test_each_broken_rule_is_found.pytestmark if mark.name == "parametrize"]  # type: ignore[attr-defined]
    broken = set().union(*(found for _, found in mark.args[1]))
    broken |= {
        "a row above the low mark, a marker or the newest row is missing",
        "ranges of a pipeline overlap or leave a block out",
    }
    assert set(SAFETY) == broken
