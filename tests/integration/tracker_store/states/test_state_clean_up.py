"""Test which versions of a state clean-up deletes, with their files, and which it keeps."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from orchestration.block_checks.block_verification import repair_blocks, verify_blocks
from orchestration.tracker.clean_up.cleaner import Cleaner
from receiver_runtime.block_store.frames.errors import StoreUnavailableError
from receiver_runtime.block_store.frames.frame import FrameFields, FrameKind, SourceRule, encode_frame
from receiver_runtime.block_store.stores.local import LocalBlockStore
from receiver_runtime.block_store.stores.stores import open_block_store
from tests.support.driver_log.log import INTERVAL, wait_until_blocked
from tests.support.driver_log.stated_log import OUTPUT, StatedLog, batch_time, frame, make_stated_log
from tracker_store.batches import outputs, state_versions
from tracker_store.batches.pipeline_states import stop_pipelines
from tracker_store.batches.pipelines import apply_pipeline, remove_pipeline
from tracker_store.batches.state_versions import VersionKey
from tracker_store.connection.engine import connect
from tracker_store.connection.errors import StateMovedError
from tracker_store.receivers.leadership import DeposedError
from tracker_store.receivers.processes import deregister_process
from tracker_store.retention import state_files
from tracker_store.retention.history import clean_up_history
from tracker_store.retention.state_files import forget_state_version, state_versions_to_delete
from tracker_store.schema.state_chain import CHAIN_STEPS
from tracker_store.schema.states import AttemptFailure

if TYPE_CHECKING:
    from pathlib import Path

T1, T2, T3 = (batch_time(number) for number in (1, 2, 3))
WINDOW, KEEP = timedelta(hours=1), timedelta(days=14)


STEPS = 5  # as CHAIN_STEPS, so that few batches are enough


@pytest.fixture
def short_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clean-up keep STEPS versions before each that is read."""
    assert CHAIN_STEPS > STEPS
    monkeypatch.setattr(state_files, "CHAIN_STEPS", STEPS)


@pytest.fixture
def stated(connection: sa.Connection) -> StatedLog:
    """Make a log with an output that has a state."""
    return make_stated_log(connection)


def marked(stated: StatedLog, *, limit: int = 100, forget: bool = True) -> set[VersionKey]:
    found = state_versions_to_delete(stated.connection, restore_window=WINDOW, keep=KEEP, limit=limit)
    for state in found if forget else ():
        forget_state_version(stated.connection, state)
    return {VersionKey(state.batch_time, state.attempt) for state in found}


def left(stated: StatedLog) -> set[VersionKey]:
    return {version for version, _, _ in stated.versions()}


def test_a_version_of_an_attempt_that_ended_goes_and_one_that_runs_stays(stated: StatedLog) -> None:
    stated.allocate(1)
    process_id = stated.process()
    stated.claim(T1, process_id=process_id)
    stated.begin(T1, 1, None)
    stated.age(2 * WINDOW)
    assert marked(stated) == set(), "it runs"
    stated.fail(T1, 1, failure=AttemptFailure.LOST, max_attempts=3)
    assert marked(stated) == set(), "a target may have its result"
    stated.connection.execute(
        sa.text("UPDATE forebay.batch_attempts SET ended_at = ended_at - :window"), {"window": 2 * WINDOW}
    )
    assert marked(stated) == set(), "its process has not ended"
    deregister_process(stated.connection, process_id, "it was ended")
    assert marked(stated) == {VersionKey(T1, 1)}
    assert left(stated) == set()


@pytest.mark.usefixtures("short_chains")
def test_what_the_head_reads_stays_whatever_becomes_of_its_batches(stated: StatedLog) -> None:
    for number in range(1, STEPS + 4):
        stated.run(number)
    assert marked(stated) == set(), "an older backup of the driver log has an older head"
    stated.age(2 * WINDOW)
    before = left(stated)
    assert marked(stated, limit=2) == {VersionKey(T1, 1), VersionKey(T2, 1)}
    assert marked(stated) == {VersionKey(T3, 1)}
    assert marked(stated) == set()
    assert len(before - left(stated)) == 3
    stated.log.tracker.allocate_blocks_to_batch(batch_time(STEPS + 100))
    while clean_up_history(stated.connection, pipeline_id=1, keep=timedelta(0), max_rows=1000).rows:
        pass
    stated.age(2 * KEEP)
    stated.connection.execute(sa.text("UPDATE forebay.pipelines SET applied_at = clock_timestamp()"))
    assert marked(stated) == set()
    assert state_versions.chain(stated.connection, **stated.where, version=stated.head())


@pytest.mark.usefixtures("short_chains")
def test_versions_that_a_replay_forward_may_read_stay(stated: StatedLog) -> None:
    for number in range(1, STEPS + 10):
        stated.run(number)
    stated.age(2 * WINDOW)
    stated.connection.execute(
        sa.text("UPDATE forebay.pipelines SET retention = last_batch_time - CAST(:t AS timestamptz)"),
        {"t": batch_time(STEPS + 3)},
    )
    # The oldest batch that can be replayed is the one after that time; its version read the ordinal STEPS + 3.
    assert marked(stated) == {VersionKey(batch_time(number), 1) for number in (1, 2, 3)}


def test_a_removed_pipeline_s_state_goes(stated: StatedLog) -> None:
    for number in (1, 2):
        stated.run(number)
    stop_pipelines(stated.connection, name="words")
    remove_pipeline(stated.connection, "words")
    assert marked(stated) == set()
    stated.age(2 * WINDOW)
    assert marked(stated) == {VersionKey(T1, 1), VersionKey(T2, 1)}
    assert left(stated) == set()
    assert stated.head() is None


def test_the_state_of_an_output_that_is_not_declared_any_more_goes_late(stated: StatedLog) -> None:
    """A renamed output is another one, and begins without a state; the former one's stays for a while."""
    one = stated.run(1)
    apply_pipeline(
        stated.connection,
        name="words",
        declaration={"outputs": {"sums": {"inputs": ["lines"], "state": {}}}},
        stream_ids=[stated.log.stream_id],
        interval=INTERVAL,
    )
    stated.age(KEEP - WINDOW)
    assert marked(stated) == set()
    assert stated.head() == one
    stated.age(2 * WINDOW)
    assert marked(stated) == {one}
    assert stated.head() is None


def test_a_version_that_is_being_deleted_is_not_committed(stated: StatedLog, engine: sa.Engine) -> None:
    """Whichever comes first, clean-up or a commit that is adopted late, the other one does nothing."""
    stated.allocate(1)
    stated.claim(T1)
    stated.begin(T1, 1, None)
    stated.note(T1, 1)
    stated.fail(T1, 1, failure=AttemptFailure.LOST, max_attempts=3)
    stated.claim(T1, 2)
    stated.age(2 * WINDOW)
    with connect(engine) as other:
        other.exec_driver_sql("BEGIN")
        stated.on(other).commit(T1, 2, state_attempt=1)
        # It passes what is locked.
        assert marked(stated) == set()
        other.exec_driver_sql("ROLLBACK")
        other.exec_driver_sql("BEGIN")
        assert marked(stated.on(other), forget=False) == {VersionKey(T1, 1)}
        refused: list[BaseException] = []

        def commit() -> None:
            try:
                stated.commit(T1, 2, state_attempt=1)
            except StateMovedError as error:
                refused.append(error)

        thread = threading.Thread(target=commit)
        thread.start()
        with connect(engine) as third:
            wait_until_blocked(third)
        other.exec_driver_sql("COMMIT")
        thread.join(30)
    assert "being deleted" in str(refused[0])
    assert outputs.commits_of_batch(stated.connection, stated.pipeline_id, T1) == []
    assert state_versions.version(stated.connection, **stated.where, batch_time=T1, attempt=1) is None


def test_a_deposed_leader_marks_nothing(stated: StatedLog) -> None:
    stated.run(1)
    with pytest.raises(DeposedError):
        state_versions_to_delete(stated.connection, restore_window=WINDOW, keep=KEEP, limit=10, term=99)


def write(store: LocalBlockStore, path: str) -> tuple[int, int]:
    """Write a segment of one frame; return its length and checksum."""
    fields = FrameFields(
        FrameKind.BLOCK,
        SourceRule.NOT_SENT_AGAIN,
        receiver_id=0,
        epoch=1,
        sequence=1,
        registered_through=0,
        records=1,
        mark=1,
    )
    encoded = encode_frame(b"a state", fields)
    segment = store.create_segment(path)
    segment.append(encoded)
    segment.sync()
    segment.close()
    return encoded.length, encoded.crc32c


def test_the_cleaner_deletes_files_then_rows_and_goes_on_after_a_failure(stated: StatedLog, tmp_path: Path) -> None:
    store = LocalBlockStore(tmp_path / "blocks")
    stated.allocate(1)
    for attempt in (1, 2):
        stated.claim(T1, attempt)
        folder = stated.begin(T1, attempt, None)
        write(store, f"{folder}/one.segment")
        stated.fail(T1, attempt, failure=AttemptFailure.LOST, max_attempts=9)
    write(store, f"{folder}/two.segment")
    stated.age(2 * WINDOW)
    broken = True

    class Broken(LocalBlockStore):
        def delete_segment(self, path: str) -> None:
            if broken and "-1/" in path:
                raise StoreUnavailableError("a replica", "it is away")
            super().delete_segment(path)

    cleaner = Cleaner(lambda _: Broken(tmp_path / "blocks"))
    report = cleaner.cleanup_old_batches(stated.connection, T1)
    assert report.states == 1
    assert left(stated) == {VersionKey(T1, 1)}
    assert len(list(store.segment_paths())) == 1
    broken = False
    assert cleaner.cleanup_old_batches(stated.connection, T1).states == 1
    assert left(stated) == set()
    assert list(store.segment_paths()) == []


def test_block_checks_know_states_and_report_what_is_missing(stated: StatedLog, tmp_path: Path) -> None:
    store = LocalBlockStore(tmp_path / "blocks")
    stated.allocate(1)
    stated.claim(T1)
    folder = stated.begin(T1, 1, None)
    rows = []
    for name in ("one", "two"):
        length, crc32c = write(store, f"{folder}/{name}.segment")
        row = frame(0, f"{folder}/{name}.segment", is_full=True)
        row[3:5] = [length, crc32c]
        rows.append(row)
    # A task that ran twice left a file that no frame is in.
    write(store, f"{folder}/left.segment")
    stated.note(T1, 1, rows)
    stated.commit(T1, 1)
    # Rows of another test's kind of blocks have no files here.
    stated.connection.execute(sa.text("DELETE FROM forebay.blocks; DELETE FROM forebay.log_segments"))
    report = verify_blocks(stated.connection, store)
    assert report.intact
    assert report.state_frames == 2
    store.delete_segment(f"{folder}/two.segment")
    write(store, f"state/9/{OUTPUT}/20260101-1/unknown.segment")
    report = verify_blocks(stated.connection, store)
    assert not report.intact
    assert report.orphans == [f"state/9/{OUTPUT}/20260101-1/unknown.segment"]
    [lost] = report.lost_states
    assert (lost.pipeline, lost.output, lost.batch_time, lost.path) == ("words", OUTPUT, T1, f"{folder}/two.segment")
    repair_blocks(stated.connection, store, report)
    assert sorted(store.segment_paths()) == [f"{folder}/left.segment", f"{folder}/one.segment"]


def test_a_replica_that_lacks_a_state_gets_it_from_another(stated: StatedLog, tmp_path: Path) -> None:
    one, two = LocalBlockStore(tmp_path / "one"), LocalBlockStore(tmp_path / "two")
    two.make_identity()
    stated.allocate(1)
    stated.claim(T1)
    folder = stated.begin(T1, 1, None)
    path = f"{folder}/one.segment"
    row = frame(0, path, is_full=True)
    row[3:5] = write(one, path)
    stated.note(T1, 1, [row])
    stated.commit(T1, 1)
    stated.connection.execute(sa.text("DELETE FROM forebay.blocks; DELETE FROM forebay.log_segments"))
    store = open_block_store(f"{one.root},{two.root}")
    report = verify_blocks(stated.connection, store)
    assert report.lost_states == []
    assert [replica.lacking for replica in report.replicas] == [{}, {path: 1}]
    repair = repair_blocks(stated.connection, store, report)
    assert (repair.copied, repair.not_copied) == ([(str(two.root), path)], [])
    assert verify_blocks(stated.connection, store).intact
