"""Test positioned receivers in real processes on a real driver log: its rows, its two receivers, its pauses."""

from __future__ import annotations

import json
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

from forebay.sources import CustomSource
from forebay.testing.receiver_processes import eventually
from forebay.testing.sources import stop
from tests.conformance.source_rig import SourceRig
from tests.unit.receiver_runtime.support import reaches

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# A source of the numbers 0, 1, 2 and so on, up to the number in a file. With each call of `on_registered` the receiver
# writes down the position, and what the driver log has at that moment.
MODULE = """
import json
import os
from pathlib import Path

import sqlalchemy as sa

from forebay.receiver import Fetched, PositionedReceiver


class Numbers(PositionedReceiver):
    columns = (("number", "int64"),)
    poll_interval = 0.01

    def __init__(self, url, directory):
        self.engine = sa.create_engine(url)
        self.directory = Path(directory)

    def fetch(self, position):
        end = min(position + 7, int((self.directory / "end").read_text()))
        return Fetched(list(range(position, end)), end) if end > position else None

    def on_registered(self, position):
        with self.engine.connect() as connection:
            registered = connection.execute(
                sa.text("SELECT position FROM forebay.source_progress WHERE source = 'custom'")
            ).scalar()
        with (self.directory / f"{os.getpid()}.said").open("a") as said:
            said.write(json.dumps([position, registered]) + "\\n")
"""


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the working directory of receiver processes, with the module in it."""
    (tmp_path / "numbers_source.py").write_text(textwrap.dedent(MODULE), encoding="utf-8")
    set_end(tmp_path, 500)
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    yield tmp_path
    sys.path[:] = before


def set_end(work: Path, end: int) -> None:
    (work / "end.new").write_text(str(end), encoding="utf-8")
    (work / "end.new").rename(work / "end")


def rig_for(database_url: str, work: Path, *, receivers: int = 1) -> SourceRig:
    source = CustomSource(receiver="numbers_source:Numbers", options={"url": database_url, "directory": str(work)})
    return SourceRig.make(database_url, work / "rig", source, receivers=receivers)


def said(work: Path, pid: int) -> list[list[int]]:
    path = work / f"{pid}.said"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def assert_each_once(rig: SourceRig, end: int) -> None:
    assert sorted(row["number"] for row in rig.rows()) == list(range(end))
    assert rig.failed_checks() == []
    assert rig.execute("SELECT DISTINCT source_rule FROM forebay.log_segments") == [("offsets",)]


def test_s09_the_row_is_there_when_the_callback_comes(database_url: str, work: Path) -> None:
    rig = rig_for(database_url, work)
    try:
        first = rig.start()
        eventually(lambda: said(work, first.pid)[-1:] == [[500, 500]], "the last call")
        calls = said(work, first.pid)
        assert calls[0] == [0, 0]
        assert all(registered >= position for position, registered in calls)
        assert [position for position, _ in calls] == sorted(position for position, _ in calls)
        first.kill()
        first.wait(60)
        set_end(work, 900)
        second = rig.start(assignment=2)
        eventually(lambda: said(work, second.pid)[-1:] == [[900, 900]], "the last call of the next process")
        assert said(work, second.pid)[0][0] == 500
        stop(second)
        assert_each_once(rig, 900)
    finally:
        rig.close()


def test_s09_w01_two_receivers_of_one_partition_store_each_record_once(database_url: str, work: Path) -> None:
    rig = rig_for(database_url, work, receivers=2)
    try:
        set_end(work, 0)
        processes = [rig.start(0), rig.start(1)]
        eventually(lambda: all(said(work, process.pid) for process in processes), "both receivers")
        end = 0

        def says_it() -> bool:
            nonlocal end
            end += 50
            set_end(work, end)
            return rig.said("another receiver of the stream reads the partition 'all' too. Let one receiver read it")

        eventually(says_it, "the reason of a refusal")
        eventually(reaches(rig.registered, end), "all records")
        for process in processes:
            stop(process)
        assert_each_once(rig, end)
    finally:
        rig.close()
