from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from receiver_runtime.block_path.write_ahead_log import WriteAheadLogClosedError, WriteAheadLogError
from receiver_runtime.block_store.frames.segment import IntactFrame, TornTail
from receiver_runtime.block_store.stores.local import LocalBlockStore
from tests.unit.receiver_runtime.support import FaultyFiles, ManualClock, MemoryDriverLog, frame, make_log

if TYPE_CHECKING:
    from pathlib import Path


class Setup:
    def __init__(self, root: Path, *, durable: bool = True, max_segment_bytes: int = 2**20) -> None:
        self.files = FaultyFiles()
        self.store = LocalBlockStore(root, files=self.files)
        self.rows = MemoryDriverLog()
        self.clock = ManualClock()
        self.log = make_log(
            self.store,
            self.rows,
            clock=self.clock,
            max_segment_bytes=max_segment_bytes,
            durability="durable" if durable else "ephemeral",
        )

    def sequences(self) -> list[list[int]]:
        """Return the sequences of the intact frames, by segment."""
        return [
            [item.header.sequence for item in self.store.scan(path) if isinstance(item, IntactFrame)]
            for path in self.rows.paths.values()
            if (self.store.root / path).exists()
        ]


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path)


def test_l01_a_log_that_nothing_is_written_to_makes_nothing(tmp_path: Path) -> None:
    setup = Setup(tmp_path / "blocks")
    setup.log.roll_if_due()
    setup.log.close()
    setup.log.close()
    assert not (tmp_path / "blocks").exists()
    assert setup.rows.paths == {}


def test_l01_a_handle_reads_what_was_written(setup: Setup) -> None:
    frames = [frame(b"first"), frame(b"second", sequence=2)]
    handles = [handle for item in frames for handle in setup.log.write([item])]
    for item, handle in zip(frames, handles, strict=True):
        read = setup.store.read_frame(setup.rows.paths[handle.segment_id], handle.offset, handle.length, handle.crc32c)
        assert read.payload.to_pybytes() == item.payload.to_pybytes()


def test_the_row_is_written_before_the_file_and_the_name_has_the_epoch(setup: Setup) -> None:
    setup.files.create_faults = 1
    setup.log.write([frame()])
    assert setup.rows.paths == {1: "receiver-7/9-000001.segment", 2: "receiver-7/9-000002.segment"}
    assert not (setup.store.root / setup.rows.paths[1]).exists()
    assert setup.rows.lengths == {1: 0}
    assert setup.rows.rules == {1: "not_sent_again", 2: "not_sent_again"}


def test_one_write_of_many_frames_takes_one_sync(setup: Setup) -> None:
    setup.log.write([frame(sequence=n) for n in range(1, 4)])
    assert setup.files.syncs == 1
    assert setup.sequences() == [[1, 2, 3]]


def test_an_ephemeral_log_syncs_nothing(tmp_path: Path) -> None:
    setup = Setup(tmp_path, durable=False)
    setup.log.write([frame()])
    setup.log.close()
    assert setup.files.syncs == 0
    assert setup.rows.lengths == {1: frame().length}


def test_l02_segments_roll_by_time_and_are_sealed_with_their_length(setup: Setup) -> None:
    setup.log.write([frame()])
    setup.clock.advance(59.9)
    setup.log.write([frame(sequence=2)])
    setup.clock.advance(0.2)
    setup.log.write([frame(sequence=3)])
    assert setup.sequences() == [[1, 2], [3]]
    assert setup.rows.lengths == {1: 2 * frame().length}


def test_l02_segments_roll_by_size_and_a_large_frame_has_one_to_itself(tmp_path: Path) -> None:
    setup = Setup(tmp_path, max_segment_bytes=300)
    for sequence, size in enumerate([50, 50, 50, 500, 50], start=1):
        setup.log.write([frame(b"x" * size, sequence=sequence)])
    setup.log.close()
    assert setup.sequences() == [[1, 2], [3], [4], [5]]
    assert all(length == (tmp_path / setup.rows.paths[n]).stat().st_size for n, length in setup.rows.lengths.items())


def test_an_idle_segment_is_sealed_at_its_age(setup: Setup) -> None:
    setup.log.write([frame()])
    setup.log.roll_if_due()
    assert setup.rows.lengths == {}
    setup.clock.advance(61)
    setup.log.roll_if_due()
    assert setup.rows.lengths == {1: frame().length}


def test_a_failed_seal_is_repeated_later(setup: Setup) -> None:
    setup.rows.fail_seals = True
    setup.log.write([frame()])
    setup.clock.advance(61)
    setup.log.write([frame(sequence=2)])
    setup.rows.fail_seals = False
    setup.log.roll_if_due()
    assert setup.rows.lengths == {1: frame().length}


@pytest.mark.parametrize("fault", ["short", "error"])
def test_l03_a_failed_write_is_made_again_in_a_new_segment(setup: Setup, fault: str) -> None:
    setup.log.write([frame()])
    setup.files.write_faults = [fault]
    (handle,) = setup.log.write([frame(sequence=2)])
    assert handle.segment_id == 2
    assert setup.sequences() == [[1], [2]]
    setup.log.close()
    # Everything up to the sealed length is good, whatever follows in the file; the file is not truncated.
    assert setup.rows.lengths[1] == frame().length
    tail = list(setup.store.scan(setup.rows.paths[1]))[1:]
    assert [type(item) for item in tail] == ([TornTail] if fault == "short" else [])


def test_l03_a_failed_sync_is_never_asked_for_again(setup: Setup) -> None:
    setup.log.write([frame()])
    setup.files.sync_faults = 1
    (handle,) = setup.log.write([frame(sequence=2)])
    assert (handle.segment_id, handle.offset) == (2, 0)
    assert setup.files.syncs == 3
    setup.log.close()
    assert setup.rows.lengths == {1: frame().length, 2: frame().length}


def test_l03_attempts_are_bounded_and_the_same_frame_may_come_again(setup: Setup) -> None:
    setup.files.write_faults = ["short", "error", "short"]
    with pytest.raises(WriteAheadLogError, match=r"short write.*Input/output.*check the disk"):
        setup.log.write([frame()])
    assert len(setup.rows.paths) == 3
    (handle,) = setup.log.write([frame()])
    assert handle.segment_id == 4
    assert setup.rows.lengths == {1: 0, 2: 0, 3: 0}


def test_l03_after_a_failure_the_whole_group_is_written_again(setup: Setup) -> None:
    setup.files.write_faults = ["", "short"]
    handles = setup.log.write([frame(sequence=1), frame(sequence=2)])
    assert [(handle.segment_id, handle.offset) for handle in handles] == [(2, 0), (2, frame().length)]


def test_l08_nothing_is_written_after_the_end(setup: Setup) -> None:
    setup.log.write([frame()])
    setup.log.close()
    with pytest.raises(WriteAheadLogClosedError):
        setup.log.write([frame()])
    assert setup.rows.lengths == {1: frame().length}
