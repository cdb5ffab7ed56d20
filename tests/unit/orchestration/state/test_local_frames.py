"""Test the copies of a state's frames: when there are some, what is read of them, and what makes them go."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from orchestration.state import local_frames
from orchestration.state.reading import _BucketReader
from orchestration.state.state_frame import StateError, StateFrame
from orchestration.state.state_schema import StateSchema
from orchestration.state.state_segments import StatePlace
from orchestration.state.writing import _BucketWriter
from tests.support.receivers.block_keys import files_with, key_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SCHEMA = StateSchema.parse(key="user STRING", value="n BIGINT")
START = datetime(2026, 1, 1, tzinfo=UTC)
COLUMNS = [("bucket", pa.int32()), ("hash", pa.int64()), ("c0", pa.string()), ("c1", pa.int64())]


@dataclass
class Bucket:
    """The versions of a state with one bucket, whose tasks run in this process."""

    directory: Path
    block_keys: str = ""
    schema: StateSchema = SCHEMA
    frames: list[StateFrame] = field(default_factory=list)
    versions: int = 0

    @property
    def place(self) -> StatePlace:
        return StatePlace(str(self.directory / "blocks"), self.block_keys, {})

    def write(self, values: Mapping[str, int], *, is_full: bool = False) -> None:
        self.versions += 1
        full = {0: tuple(self.frames)} if is_full else {}
        time, folder = START + timedelta(hours=self.versions), f"state/1/totals/{self.versions}-1"
        writer = _BucketWriter(self.place, self.schema, full, time, 1, time, None, folder, self.versions)
        [answers] = writer.task()([rows(values)])
        [answer] = answers.to_pylist()
        at = (answer["path"], answer["place"], answer["length"], answer["crc32c"], answer["row_count"])
        self.frames = [*([] if is_full else self.frames), StateFrame(0, *at, is_full, None)]

    def read(self, *users: str) -> dict[str, int]:
        reader = _BucketReader(self.place, self.schema, {0: tuple(self.frames)}, START, takes_all=False)
        found = [
            row
            for batch in reader.task()([rows(dict.fromkeys(users, 0)).select([0, 1, 2])])
            for row in batch.to_pylist()
        ]
        return {row["c0"]: row["c1"] for row in found}

    def copies(self) -> list[Path]:
        return sorted(path for path in (self.directory / "local").rglob("*") if path.is_file())


def rows(values: Mapping[str, int]) -> pa.RecordBatch:
    made = [{"bucket": 0, "hash": len(user), "c0": user, "c1": n} for user, n in values.items()]
    return pa.RecordBatch.from_pylist(made, schema=pa.schema(COLUMNS))


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """Return a bucket without a version, in a process of Spark's."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path / 'local'},{tmp_path / 'other'}")
    return Bucket(tmp_path)


def test_the_second_batch_makes_copies_and_later_ones_read_nothing_else(bucket: Bucket) -> None:
    bucket.write({"a": 1, "bb": 2}, is_full=True)
    assert bucket.read("a") == {"a": 1}
    assert bucket.copies() == [], "this process may have no second batch"
    bucket.write({"a": 3})
    assert bucket.read("a", "bb", "ccc") == {"a": 3, "bb": 2}
    assert len(bucket.copies()) == 2
    bucket.write({"ccc": 4})
    assert len(bucket.copies()) == 3, "what is written is copied at once"
    shutil.rmtree(bucket.directory / "blocks" / "state")
    assert bucket.read("a", "bb", "ccc") == {"a": 3, "bb": 2, "ccc": 4}
    bucket.write({"a": 5}, is_full=True)
    assert bucket.read("a", "bb", "ccc") == {"a": 5, "bb": 2, "ccc": 4}
    assert len(bucket.copies()) == 1, "no version needs the others"


def test_a_copy_that_is_damaged_or_gone_is_made_again(bucket: Bucket) -> None:
    bucket.write({"a": 1}, is_full=True)
    for _ in range(2):
        bucket.read("a")
    [copy] = bucket.copies()
    whole = copy.read_bytes()
    for damage in (whole[:-9], b"", whole[: len(whole) // 2]):
        copy.write_bytes(damage)
        assert bucket.read("a") == {"a": 1}
        assert copy.read_bytes() == whole
    copy.unlink()
    (copy.parent / "killed.part").write_bytes(whole[:50])
    assert bucket.read("a") == {"a": 1}
    assert bucket.copies() == [copy]


def test_a_state_with_other_columns_is_refused_although_there_is_a_copy(bucket: Bucket) -> None:
    bucket.write({"a": 1}, is_full=True)
    for _ in range(2):
        bucket.read("a")
    other = Bucket(bucket.directory, schema=StateSchema.parse(key="user STRING", value="n INT"), frames=bucket.frames)
    with pytest.raises(StateError, match="the state was written with the columns user string"):
        other.read("a")


def test_an_encrypted_state_has_no_copies(bucket: Bucket) -> None:
    bucket.block_keys = key_file(bucket.directory / "key")
    for is_full in (True, False, False):
        bucket.write({"a secret": bucket.versions}, is_full=is_full)
        assert bucket.read("a secret") == {"a secret": bucket.versions - 1}
    assert bucket.copies() == []
    assert files_with(bucket.directory, [b"a secret"]) == []


def test_a_disk_that_is_nearly_full_gets_no_copies(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_frames, "_LEFT_FREE", 1.0)
    bucket.write({"a": 1}, is_full=True)
    for _ in range(3):
        assert bucket.read("a") == {"a": 1}
    assert bucket.copies() == []


def test_without_a_directory_of_sparks_there_are_no_copies(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    (bucket.directory / "file").touch()
    bucket.write({"a": 1}, is_full=True)
    for given in ("", str(bucket.directory / "file")):
        monkeypatch.setenv("SPARK_LOCAL_DIRS", given)
        for _ in range(3):
            assert bucket.read("a") == {"a": 1}
    assert bucket.copies() == []
