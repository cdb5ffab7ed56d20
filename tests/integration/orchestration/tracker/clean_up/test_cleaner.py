"""Test clean-up with real files: rows first, files after, and the next run recovers from any crash (T06, W09, W11)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from orchestration.batches.attached_store import open_attached_store
from orchestration.tracker.clean_up import cleaner as cleaner_module
from orchestration.tracker.clean_up.cleaner import Cleaner
from receiver_runtime.block_store.frames.errors import StoreUnavailableError
from receiver_runtime.block_store.stores.identity import make_identity
from receiver_runtime.block_store.stores.local import LocalBlockStore
from tests.support.driver_log.log import NOON, Log, seal
from tests.support.machine.mounts import Mount
from tracker_store.blocks.block_stores import attach_block_store

if TYPE_CHECKING:
    from pathlib import Path

SECOND = timedelta(seconds=1)


@pytest.fixture
def store(tmp_path: Path) -> LocalBlockStore:
    return LocalBlockStore(tmp_path / "blocks")


class Died(BaseException):
    """An exception that stands for a kill of the process."""


class DyingStore(LocalBlockStore):
    """A store that dies before or after it deletes a file."""

    def __init__(self, root: Path, *, after: bool) -> None:
        super().__init__(root)
        self._after = after

    def delete_segment(self, path: str) -> None:
        if self._after:
            super().delete_segment(path)
        raise Died


def receive(log: Log, store: LocalBlockStore, epochs: int) -> list[str]:
    """Register one sealed segment per epoch with three blocks each; return the files' paths."""
    paths = []
    [receiver] = log.receiver_ids
    for epoch in range(epochs):
        claimed = log.add_at(receiver, *(NOON + (epoch * 3 + n) * SECOND for n in range(3)))
        path = f"{receiver}/{claimed.epoch}"
        store.create_segment(path).close()
        segment_id = log.connection.execute(
            sa.text("SELECT id FROM forebay.log_segments WHERE path = :path"), {"path": path}
        ).scalar_one()
        seal(log.connection, segment_id)
        paths.append(path)
    return paths


def finish(log: Log, at: datetime) -> None:
    """Allocate everything before `at` to one batch, and complete it."""
    log.tracker.allocate_blocks_to_batch(at)
    log.connection.execute(
        sa.text(
            "UPDATE forebay.batches SET state = 'COMPLETED', completed_at = clock_timestamp() WHERE batch_time = :t"
        ),
        {"t": at},
    )


def hold(log: Log, path: str) -> None:
    """Let a dead letter lie in a segment, so that its file stays."""
    log.connection.execute(
        sa.text(
            'INSERT INTO forebay.dead_letters (receiver_id, epoch, reason, part, bytes, segment_id, "offset", length, '
            "crc32c) SELECT receiver_id, epoch, 'truncated', 0, 1, id, 5, 1, 0 FROM forebay.log_segments "
            "WHERE path = :p"
        ),
        {"p": path},
    )


def cleaner(store: LocalBlockStore) -> Cleaner:
    # What the look names must be enough: no receiver has its turn.
    return Cleaner(lambda _: store, restore_window=timedelta(0), rows_per_statement=4, full_scan_rounds=10**9)


def files(store: LocalBlockStore) -> set[str]:
    return set(store.segment_paths())


def test_w11_blocks_and_files_go_when_their_batches_are_done(log: Log, store: LocalBlockStore) -> None:
    paths = receive(log, store, 3)
    finish(log, NOON + 10 * SECOND)
    report = cleaner(store).cleanup_old_batches(log.connection, datetime.now(UTC))
    # Three markers and nine blocks; the newest row stays, and so does its file.
    assert (report.blocks, report.records, report.segments, report.more) == (11, 80, 2, False)
    assert files(store) == {paths[-1]}
    left = log.connection.execute(sa.text("SELECT sequence FROM forebay.blocks WHERE segment_id IS NOT NULL")).scalars()
    assert list(left) == [12]


def test_w09_nothing_goes_that_a_batch_has_not_finished(log: Log, store: LocalBlockStore) -> None:
    paths = receive(log, store, 2)
    log.tracker.allocate_blocks_to_batch(NOON + 10 * SECOND)
    report = cleaner(store).cleanup_old_batches(log.connection, datetime.now(UTC))
    assert (report.blocks, report.segments) == (0, 0)
    assert files(store) == set(paths)


def test_t06_nothing_younger_than_the_threshold_goes(log: Log, store: LocalBlockStore) -> None:
    receive(log, store, 2)
    finish(log, NOON + 10 * SECOND)
    assert cleaner(store).cleanup_old_batches(log.connection, NOON + 10 * SECOND).blocks == 0
    assert cleaner(store).cleanup_old_batches(log.connection, NOON + 11 * SECOND).blocks > 0


def test_files_stay_for_the_restore_window(log: Log, store: LocalBlockStore) -> None:
    paths = receive(log, store, 2)
    finish(log, NOON + 10 * SECOND)
    cleaning = Cleaner(lambda _: store, restore_window=timedelta(hours=1))
    report = cleaning.cleanup_old_batches(log.connection, datetime.now(UTC))
    assert report.segments == 0
    assert files(store) == set(paths)


@pytest.mark.parametrize("after", [False, True])
def test_the_next_run_recovers_from_a_crash_around_the_deletion_of_a_file(
    log: Log, store: LocalBlockStore, *, after: bool
) -> None:
    paths = receive(log, store, 2)
    finish(log, NOON + 10 * SECOND)
    with pytest.raises(Died):
        cleaner(DyingStore(store.root, after=after)).cleanup_old_batches(log.connection, datetime.now(UTC))
    report = cleaner(store).cleanup_old_batches(log.connection, datetime.now(UTC))
    assert report.segments == 1
    assert files(store) == {paths[-1]}
    named = log.connection.execute(sa.text("SELECT path FROM forebay.log_segments")).scalars()
    assert list(named) == [paths[-1]]


def test_a_segment_that_was_never_sealed_is_never_deleted(log: Log, store: LocalBlockStore) -> None:
    """Check this because its tail may hold blocks that were stored and not registered: those are for salvage."""
    paths = receive(log, store, 2)
    log.connection.execute(
        sa.text("UPDATE forebay.log_segments SET state = 'OPEN', length = NULL WHERE path = :p"), {"p": paths[0]}
    )
    finish(log, NOON + 10 * SECOND)
    assert cleaner(store).cleanup_old_batches(log.connection, datetime.now(UTC)).segments == 0
    assert files(store) == set(paths)


def test_a_segment_with_a_dead_letter_stays(log: Log, store: LocalBlockStore) -> None:
    paths = receive(log, store, 2)
    hold(log, paths[0])
    finish(log, NOON + 10 * SECOND)
    cleaner(store).cleanup_old_batches(log.connection, datetime.now(UTC))
    assert files(store) == set(paths)


class AwayStore(LocalBlockStore):
    """A store in which some segments can't be deleted, as while a replica is unavailable."""

    def __init__(self, root: Path, away: set[str]) -> None:
        super().__init__(root)
        self.away = away

    def delete_segment(self, path: str) -> None:
        if path in self.away:
            raise StoreUnavailableError(self.name, "away")
        super().delete_segment(path)


def test_a_segment_that_can_not_be_deleted_holds_up_no_other_and_goes_later(
    log: Log, store: LocalBlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaner_module, "SEGMENTS_PER_CALL", 1)
    paths = receive(log, store, 4)
    finish(log, NOON + 20 * SECOND)
    away = AwayStore(store.root, {paths[0]})
    cleaning = Cleaner(lambda _: away, restore_window=timedelta(0))
    for _ in range(3):
        cleaning.cleanup_old_batches(log.connection, datetime.now(UTC))
    assert paths[0] in files(store)
    assert paths[1] not in files(store)
    away.away = set()
    for _ in range(3):
        cleaning.cleanup_old_batches(log.connection, datetime.now(UTC))
    assert files(store) == {paths[-1]}


def test_what_the_look_misses_goes_when_it_is_the_receivers_turn_and_the_rest_right_after(
    log: Log, store: LocalBlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaner_module, "SEGMENTS_PER_CALL", 1)
    paths = receive(log, store, 4)
    finish(log, NOON + 20 * SECOND)
    hold(log, paths[0])
    now = datetime.now(UTC)
    # The blocks go, and with them one segment: the receiver may have more.
    cleaning = Cleaner(lambda _: store, restore_window=timedelta(0), full_scan_rounds=10**9)
    assert cleaning.cleanup_old_batches(log.connection, now).segments == 1
    # Another one's look ends at the segment that is held, so it needs the receiver's turn.
    cleaning = Cleaner(lambda _: store, restore_window=timedelta(0), full_scan_rounds=3)
    gone = [cleaning.cleanup_old_batches(log.connection, now).segments for _ in range(3)]
    assert sorted(gone) == [0, 0, 1]
    assert files(store) == {paths[0], paths[-1]}


def test_a_receiver_with_more_segments_than_a_call_takes_is_asked_again_in_the_next(
    log: Log, store: LocalBlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaner_module, "SEGMENTS_PER_CALL", 1)
    paths = receive(log, store, 5)
    finish(log, NOON + 20 * SECOND)
    hold(log, paths[0])
    cleaning = Cleaner(lambda _: store, restore_window=timedelta(0), full_scan_rounds=10**9)
    gone = [cleaning.cleanup_old_batches(log.connection, datetime.now(UTC)).segments for _ in range(4)]
    assert gone == [1, 1, 1, 0]
    assert files(store) == {paths[0], paths[-1]}


def test_files_of_an_unmounted_store_are_deleted_when_it_is_back(log: Log, tmp_path: Path) -> None:
    """Check this because files seem deleted in an empty mount point: rows would go, and the files stay forever."""
    mount = Mount(tmp_path / "blocks")
    identity = make_identity(LocalBlockStore(mount.root))
    attach_block_store(log.connection, host="here", roots={identity: str(mount.root)})
    store = LocalBlockStore(mount.root)
    paths = receive(log, store, 3)
    finish(log, NOON + 20 * SECOND)
    cleaning = Cleaner(partial(open_attached_store, block_store=str(mount.root)), restore_window=timedelta(0))
    mount.unmount()
    assert cleaning.cleanup_old_batches(log.connection, datetime.now(UTC)).segments == 0
    mount.mount()
    assert files(store) == set(paths)
    # The first call continues after what could not be deleted; the next starts from the beginning.
    for _ in range(2):
        cleaning.cleanup_old_batches(log.connection, datetime.now(UTC))
    assert files(store) == {paths[-1]}
