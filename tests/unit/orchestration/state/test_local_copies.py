"""Test copies of frames on a driver's host: right or not there, of versions that are read, none of encrypted ones."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from orchestration.state.local_copies import LocalCopies
from orchestration.state.state_frame import StateError, StateFrame
from orchestration.state.state_rows import frame_schema, next_frame
from orchestration.state.state_schema import StateSchema
from orchestration.state.state_segments import StatePlace, StateSegment, read_frames
from receiver_runtime.block_store.frames.errors import BlockMissingError
from tests.support.receivers.block_keys import key_file

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = StateSchema.parse(key="user STRING", value="n BIGINT")
WHOLE = frame_schema(SCHEMA)


def written(place: StatePlace, count: int) -> StateFrame:
    """Write a frame of so many rows."""
    changes = [{"_hash": number, "user": f"user {number}", "n": number} for number in range(count)]
    table = pa.Table.from_pylist(changes, schema=pa.schema(list(WHOLE)[:-2]))
    time = datetime(2026, 1, 1, tzinfo=UTC)
    rows = next_frame(SCHEMA, [], table, batch_time=time, ttl=None, is_full=True).rows
    segment = StateSegment(place.open(), place, "state/1/o/1-1", 1)
    offset, length, crc32c = segment.append(3, rows)
    segment.sync()
    segment.close()
    return StateFrame(3, segment.path, offset, length, crc32c, count, is_full=True, next_expiry=None)


def read(place: StatePlace, *frames: StateFrame) -> list[int]:
    return [table.num_rows for table in read_frames(place.open(), place, 3, frames, WHOLE)]


def test_a_frame_is_read_once_from_the_store_while_a_version_needs_it(tmp_path: Path) -> None:
    place = StatePlace(str(tmp_path / "blocks"), "", {}, copies=str(tmp_path / "copies"))
    one, two = written(place, 1), written(place, 2)
    assert read(place, one, two) == [1, 2]
    for segment in (tmp_path / "blocks").rglob("*.segment"):
        segment.unlink()
    assert read(place, one, two) == [1, 2]
    left_by_a_killed_task, being_written = tmp_path / "copies/3/a.01", tmp_path / "copies/3/b.02"
    left_by_a_killed_task.touch()
    being_written.touch()
    os.utime(left_by_a_killed_task, (time.time() - 3600,) * 2)
    assert read(place, two) == [2]
    assert len([*(tmp_path / "copies/3").iterdir()]) == 2
    assert being_written.exists()
    with pytest.raises(BlockMissingError):
        read(place, one)


@pytest.mark.parametrize("content", [b"", b"ARROW1\0\0" + bytes(500), b"x" * 2000])
def test_a_copy_that_is_none_is_made_again(tmp_path: Path, content: bytes) -> None:
    place = StatePlace(str(tmp_path / "blocks"), "", {}, copies=str(tmp_path / "copies"))
    frame = written(place, 2)
    assert read(place, frame) == [2]
    [copy] = (tmp_path / "copies/3").iterdir()
    good = copy.read_bytes()
    copy.write_bytes(content)
    assert read(place, frame) == [2]
    assert copy.read_bytes() == good


def test_without_room_for_copies_the_store_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    place = StatePlace(str(tmp_path / "blocks"), "", {}, copies=str(tmp_path / "file"))
    frame = written(place, 2)
    assert read(place, frame, frame) == [2, 2]
    assert LocalCopies(str(tmp_path / "file"), 3).get(frame, WHOLE) is None


def test_what_is_encrypted_has_no_copy(tmp_path: Path) -> None:
    key = key_file(tmp_path / "key")
    place = StatePlace(str(tmp_path / "blocks"), key, {}, copies=str(tmp_path / "copies"))
    frame = written(place, 2)
    assert read(place, frame) == [2]
    assert not (tmp_path / "copies").exists()


def test_a_frame_of_other_columns_or_rows_is_refused_by_name(tmp_path: Path) -> None:
    place = StatePlace(str(tmp_path / "blocks"), "", {})
    frame = written(place, 2)
    other = frame_schema(StateSchema.parse(key="user STRING", value="n INT"))
    with pytest.raises(StateError, match="written with the columns user string, n int64, and is declared with"):
        read_frames(place.open(), place, 3, [frame], other)
    short = StateFrame(3, frame.path, frame.offset, frame.length, frame.crc32c, 3, is_full=True, next_expiry=None)
    with pytest.raises(StateError, match="there are 2 rows where 3 were written"):
        read(place, short)
