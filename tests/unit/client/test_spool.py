"""Test the spool against a list: wherever a kill cuts, no record is lost, doubled or moved."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from forebay.client import spool as spool_module
from forebay.client.errors import RecordRefusedError, SpoolDamagedError, SpoolFullError, SpoolLockedError
from forebay.client.framing import JsonLines
from forebay.client.segment import frame_of
from forebay.client.spool import Spool
from tests.support.searches import examples

FRAMING = JsonLines()
MOST = 2**16


def opened(folder: Path, most_bytes: int = MOST) -> Spool:
    return Spool(folder, "a", FRAMING, most_bytes=most_bytes)


def records_of(spool: Spool, begin: int, *, most: int = 1000, most_bytes: int = 2**20) -> list[bytes]:
    """Return all records from an index on, as requests of a size take them."""
    found: list[bytes] = []
    index = begin
    while index < spool.end:
        if index in spool.state.refused:
            index += 1
            continue
        batch = spool.read(index, until=min(spool.end, index + most), most_bytes=most_bytes)
        lines = batch.body.splitlines()
        assert len(lines) == batch.count > 0
        assert len(batch.body) <= most_bytes or batch.count == 1
        found += lines
        index = batch.end
    return found


class SpoolAgainstList(RuleBasedStateMachine):
    """Hold a spool and all that it must have."""

    def __init__(self) -> None:
        super().__init__()
        self._root = TemporaryDirectory()
        self._folder = Path(self._root.name, "0")
        self._generation = 0
        self._spool = opened(self._folder)
        #: Every record that was taken, by its index; those that were refused; all before `acknowledged` may be gone.
        self.taken: list[bytes] = []
        self.refused: set[int] = set()
        self.acknowledged = 0

    @initialize()
    def bind(self) -> None:
        self._spool.bind(0)

    @rule(sizes=st.lists(st.integers(1, 3000), min_size=1, max_size=4))
    def append(self, sizes: list[int]) -> None:
        new = [b'"%d' % (len(self.taken) + number) + b"x" * size + b'"' for number, size in enumerate(sizes)]
        try:
            self._spool.append(b"".join(map(FRAMING.encode, new)), len(new))
        except SpoolFullError:
            assert self._spool.used_bytes > MOST // 4
        else:
            self.taken += new

    @rule(part=st.floats(0, 1))
    def acknowledge(self, part: float) -> None:
        self.acknowledged += int((len(self.taken) - self.acknowledged) * part)
        self._spool.acknowledge(self.acknowledged)

    @precondition(lambda self: self.acknowledged < len(self.taken))
    @rule()
    def set_aside(self) -> None:
        if self.acknowledged not in self.refused:
            self._spool.set_aside(self.acknowledged, 400, "why", self.taken[self.acknowledged])
            self.refused.add(self.acknowledged)

    @rule(clean=st.booleans(), torn=st.integers(0, 400), tail=st.sampled_from((b"", b"\0" * 40, b"\xff" * 20)))
    def end_and_reopen(self, *, clean: bool, torn: int, tail: bytes) -> None:
        """End it, or kill it within the write of a record, and take what is on the disk then."""
        if clean:
            self._spool.close()
        self._generation += 1
        image = Path(self._root.name, str(self._generation))
        shutil.copytree(self._folder, image)
        if not clean:
            last = max(image.glob("*.records"))
            frame = frame_of(FRAMING.encode(b'"torn%s"' % (b"y" * 300)), 1)
            with last.open("ab") as file:
                file.write(frame[: min(torn, len(frame) - 1)] + tail)
            self._spool.close()
        shutil.rmtree(self._folder)
        self._folder = image
        self._spool = opened(image)

    @invariant()
    def holds_every_record_once_in_order(self) -> None:
        spool = self._spool
        assert spool.end == len(self.taken)
        assert spool.first <= self.acknowledged or spool.first == spool.end
        wanted = [one for index, one in enumerate(self.taken) if index >= spool.first and index not in self.refused]
        assert records_of(spool, spool.first) == wanted
        assert records_of(spool, spool.first, most=3, most_bytes=2000) == wanted

    @invariant()
    def has_offsets_without_the_refused(self) -> None:
        state = self._spool.state
        offset = 0
        for index in range(len(self.taken)):
            if index not in self.refused:
                if index >= self._spool.first:
                    assert state.offset_of(index) == offset
                    assert state.index_of(offset) == index
                offset += 1

    @invariant()
    def is_bounded_and_counts_its_bytes(self) -> None:
        spool = self._spool
        used = sum(path.stat().st_size for path in self._folder.iterdir() if path.suffix in {".records", ".jsonl"})
        assert spool.used_bytes == used
        kept = (self._folder / "refused.jsonl").stat().st_size if self.refused else 0
        assert used - kept <= MOST

    def teardown(self) -> None:
        self._spool.close()
        self._root.cleanup()


TestSpoolAgainstList = SpoolAgainstList.TestCase
TestSpoolAgainstList.settings = settings(max_examples=examples(48), stateful_step_count=25, deadline=None)
TestSpoolAgainstList = pytest.mark.search(TestSpoolAgainstList)


def test_a_kill_at_any_byte_keeps_every_whole_record(tmp_path: Path) -> None:
    spool = opened(tmp_path / "spool")
    ends = []
    for number in range(4):
        spool.append(b'{"n":%d}\n{"m":%d}\n' % (number, number), 2)
        ends.append(spool.used_bytes)
    whole = (tmp_path / "spool" / f"{0:020d}.records").read_bytes()
    spool.close()
    for size in range(len(whole) + 1):
        image = tmp_path / str(size)
        shutil.copytree(tmp_path / "spool", image)
        (image / f"{0:020d}.records").write_bytes(whole[:size])
        again = opened(image)
        assert again.end == 2 * sum(end <= size for end in ends)
        again.append(b"1\n", 1)
        assert records_of(again, 0)[-1] == b"1"
        again.close()


def test_a_spool_is_of_one_process(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    with pytest.raises(SpoolLockedError, match="open in another process"):
        opened(tmp_path)
    spool.close()
    opened(tmp_path).close()


def test_a_damaged_segment_before_the_last_is_named_and_not_passed_over(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    while len(list(tmp_path.glob("*.records"))) < 3:
        spool.append(b'"%s"\n' % (b"x" * 5000), 1)
    spool.close()
    first = min(tmp_path.glob("*.records"))
    data = bytearray(first.read_bytes())
    data[-1] ^= 1
    first.write_bytes(data)
    spool = opened(tmp_path)
    with pytest.raises(SpoolDamagedError, match="no whole record 2 at byte"):
        records_of(spool, 0)
    spool.close()


def test_a_full_disk_takes_no_part_of_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = opened(tmp_path)
    spool.append(b"1\n", 1)
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: write(file, data[:5], at) if at < 40 else 0)
    with pytest.raises(OSError, match="of 14 bytes were written"):
        spool.append(b"2\n", 1)
    monkeypatch.undo()
    spool.append(b"3\n", 1)
    assert records_of(spool, 0) == [b"1", b"3"]
    spool.close()


@pytest.mark.parametrize("at", [8, 9, 13, 16, 20, 21])
def test_damage_before_whole_records_is_named_and_nothing_is_cut(tmp_path: Path, at: int) -> None:
    spool = opened(tmp_path)
    for number in range(20):
        spool.append(b"%d\n" % number, 1)
    spool.close()
    [segment] = tmp_path.glob("*.records")
    data = bytearray(segment.read_bytes())
    data[at] ^= 1
    segment.write_bytes(data)
    for _ in range(2):
        with pytest.raises(SpoolDamagedError, match=f"is damaged at byte 8, record 0, .*truncate -s 8 {segment}"):
            opened(tmp_path)
    assert segment.read_bytes() == data
    # The way out that the error names.
    os.truncate(segment, 8)
    opened(tmp_path).close()


def test_a_disk_that_is_full_at_a_rotation_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = opened(tmp_path)
    record = b'"%s"\n' % (b"x" * 6000)
    for _ in range(2):
        spool.append(record, 1)
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    for written in (0, 3):
        monkeypatch.setattr(os, "pwrite", lambda *_, written=written: written)
        with pytest.raises(OSError, match="of 8 bytes were written"):
            spool.append(record, 1)
        monkeypatch.undo()
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
    assert spool.append(record, 1) == 3
    spool.close()
    again = opened(tmp_path)
    assert len(records_of(again, 0)) == 3
    again.close()


def test_a_failed_sync_is_never_taken_for_a_good_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = opened(tmp_path)
    spool.append(b"1\n", 1)

    def fails(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fails)
    with pytest.raises(SpoolDamagedError, match="can't be synced"):
        spool.sync()
    monkeypatch.undo()
    with pytest.raises(SpoolDamagedError, match="can't be synced"):
        spool.sync()
    with pytest.raises(SpoolDamagedError, match="can't be synced"):
        spool.append(b"2\n", 1)
    spool.close()


def test_what_is_not_on_the_disk_is_synced_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = opened(tmp_path)
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", lambda _: synced.append(spool.end))
    for number in range(3):
        spool.append(b"1\n2\n", 2)
        assert spool.sync(2 * number) == 2 * number
        assert spool.sync() == 2 * number + 2
        assert spool.sync() == 2 * number + 2
    monkeypatch.undo()
    assert synced == [2, 4, 6]
    spool.close()


def test_a_record_for_which_there_is_never_room_is_refused_at_once(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    with pytest.raises(RecordRefusedError, match="raise spool_bytes"):
        spool.append(b'"%s"\n' % (b"x" * MOST), 1)
    spool.close()


def test_room_comes_back_when_all_is_registered_within_one_segment(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    for number in range(100):
        spool.append(b'"%s"\n' % (b"x" * 10_000), 1)
        spool.acknowledge(number + 1)
    assert spool.used_bytes < MOST
    spool.close()


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("state.json", b"{", "no state of a spool"),
        ("state.json", b"\xff", "no state of a spool"),
        ("state.json", b"[" * 100_000, "no state of a spool"),
        ("state.json", json.dumps({"channel": "b", "records": "json"}).encode(), "of channel 'b', not 'a'"),
        ("state.json", json.dumps({"channel": "a", "records": "bytes"}).encode(), "of records 'bytes', not 'json'"),
        ("state.json", json.dumps({"channel": "a", "records": "json", "shift": 2**80}).encode(), "a number is none"),
        ("state.json", json.dumps({"channel": "a", "records": "json", "refused": [2, 1]}).encode(), "not in order"),
        ("state.json", json.dumps({"channel": "a", "records": "json", "more": 1}).encode(), "no state of a spool"),
        ("x.records", b"", "no segment of a spool"),
        (f"{0:020d}.records", b"#!/bin/sh\necho", "no segment of a spool"),
        ("refused.jsonl", b"[]\n", "line 1, is none of a refused record"),
    ],
)
def test_a_file_of_others_is_named(tmp_path: Path, name: str, content: bytes, why: str) -> None:
    spool = opened(tmp_path)
    spool.append(b"1\n", 1)
    spool.close()
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SpoolDamagedError, match=why):
        opened(tmp_path)
    (tmp_path / name).unlink()


def test_offsets_stay_when_refused_records_are_deleted_with_their_segments(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    spool.bind(0)
    for number in range(3):
        spool.append(b'"%s"\n' % (b"x" * 1000), 1)
        spool.set_aside(number, 400, "why", b"1")
    while spool.first < 10:
        index = spool.append(b'"%s"\n' % (b"x" * 5000), 1) - 1
        assert spool.state.offset_of(index) == index - 3
        assert spool.state.index_of(index - 3) == index
        spool.acknowledge(index)
    assert spool.state.refused == []
    spool.close()
    again = opened(tmp_path)
    assert again.state.offset_of(again.end) == again.end - 3
    again.close()


def test_records_without_a_state_are_not_sent_from_a_guessed_offset(tmp_path: Path) -> None:
    opened(tmp_path).close()
    (tmp_path / "state.json").unlink()
    with pytest.raises(SpoolDamagedError, match=r"no state\.json"):
        opened(tmp_path)


def test_a_refused_record_is_kept_once_also_if_a_kill_came_before_the_state(tmp_path: Path) -> None:
    spool = opened(tmp_path / "a")
    spool.bind(0)
    spool.append(b"1\n2\n", 2)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    spool.set_aside(0, 400, "why", b"\xff")
    spool.close()
    shutil.copy(tmp_path / "a" / "refused.jsonl", tmp_path / "b")
    again = opened(tmp_path / "b")
    assert again.state.refused == []
    again.set_aside(0, 400, "why", b"\xff")
    assert again.state.index_of(0) == 1
    again.close()
    [line] = (tmp_path / "b" / "refused.jsonl").read_text().splitlines()
    assert json.loads(line)["record_base64"] == "/w=="


def test_a_refused_record_with_the_index_of_another_is_kept(tmp_path: Path) -> None:
    for record in (b"1", b"2"):
        spool = opened(tmp_path)
        spool.bind(0)
        spool.append(record + b"\n", 1)
        spool.set_aside(0, 400, "why", record)
        spool.close()
        # Its records are lost, so that their indexes begin again.
        for path in tmp_path.glob("*.records"):
            path.unlink()
    assert [json.loads(line)["record"] for line in (tmp_path / "refused.jsonl").read_text().splitlines()] == ["1", "2"]


def test_the_names_of_new_folders_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(spool_module, "sync_folder", lambda folder: synced.append(folder.relative_to(tmp_path).name))
    for _ in range(2):
        opened(tmp_path / "a" / "b").close()
    assert synced == ["a", ""]
