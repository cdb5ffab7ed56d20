"""Check the receivers of files with their threads: what a stop leaves, what a restart reads, and file sharing."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from receiver_runtime.receivers.files import sharing as file_sharing
from receiver_runtime.receivers.files.declaration import FileLines, FollowedFiles
from receiver_runtime.receivers.files.followed.receiver import FollowedFilesReceiver
from receiver_runtime.receivers.files.receiver import FileLinesReceiver
from receiver_runtime.receivers.files.sharing import Sharing
from tests.support.polling import eventually
from tests.unit.receiver_runtime.receivers.files.files_rig import Log, Supervisor
from tracker_store.blocks.source_positions import Peer

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

DESCRIPTORS = Path("/proc/self/fd")


class SharedLog(Log):
    """A log with which other receivers may share the files, and which may be unavailable."""

    others: tuple[int, ...] = ()
    heartbeat = 0
    beats = True
    away = False

    def peers(self) -> Sequence[Peer]:
        if self.away:
            raise ConnectionError("away")
        self.heartbeat += 1
        return [
            Peer(receiver_id, receiver_id, "here", self.heartbeat if self.beats or receiver_id == 1 else 0)
            for receiver_id in (1, *self.others)
        ]


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("files")}


def test_x11_stops_and_starts_leave_nothing_behind_and_read_on(tmp_path: Path) -> None:
    log = SharedLog()
    (tmp_path / "a.log").write_text("line 0\n")
    (tmp_path / "b.txt").write_text("other\n")
    before = len(list(DESCRIPTORS.iterdir()))
    receiver = FollowedFilesReceiver(FollowedFiles(path=f"{tmp_path}/*.log", poll_interval="10ms"))
    receiver.attach_supervisor(Supervisor(log, block_interval="10ms"))  # type: ignore[arg-type]
    for number in range(1, 6):
        receiver.on_start()
        eventually(lambda number=number: len(log.values) == number, "the line")  # type: ignore[misc]
        receiver.on_stop()
        receiver.on_stop()
        eventually(lambda: not threads(), "no thread")
        assert len(list(DESCRIPTORS.iterdir())) <= before
        with (tmp_path / "a.log").open("a") as file:
            file.write(f"line {number}\n")
    other = FileLinesReceiver(FileLines(path=str(tmp_path), pattern="*.txt", min_age=0))
    other.attach_supervisor(Supervisor(log, block_interval="10ms"))  # type: ignore[arg-type]
    other.on_start()
    eventually(lambda: log.values[-1] == "other", "the other one")
    other.on_stop()
    eventually(lambda: not threads(), "no thread")
    assert log.values == [*(f"line {number}" for number in range(5)), "other"]


def test_a_stop_before_the_driver_log_says_which_receivers_share_the_files(tmp_path: Path) -> None:
    log = SharedLog()
    log.away = True
    receiver = FollowedFilesReceiver(FollowedFiles(path=f"{tmp_path}/*.log"))
    receiver.attach_supervisor(Supervisor(log))  # type: ignore[arg-type]
    receiver.on_start()
    receiver.on_stop()
    eventually(lambda: not threads(), "no thread")
    assert log.values == []


def test_silent_peers_are_left_out_and_new_ones_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_sharing, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(file_sharing, "_SILENT_SECONDS", 0.2)
    monkeypatch.setattr(file_sharing, "HAND_OVER_SECONDS", 60.0)
    log = SharedLog()
    log.others = (2,)
    sharing = Sharing(log, per_host=True)
    sharing.start()
    try:
        assert sharing.wait_for_answer() == "here"
        keys = [f"{number:x}" for number in range(200)]
        ours = [key for key in keys if sharing.is_ours(key)]
        assert not sharing.is_alone
        assert not sharing.settled()
        assert 50 < len(ours) < 150
        version = sharing.version
        log.beats = False
        eventually(lambda: sharing.is_alone, "the other one is silent")
        assert sharing.version > version
        assert all(sharing.is_ours(key) for key in keys)
        # No peer is left out because the driver log is unavailable.
        log.beats = True
        eventually(lambda: not sharing.is_alone, "the other one is back")
        log.away = True
        version = sharing.version
        for _ in range(30):
            threading.Event().wait(0.01)
        assert sharing.version == version
        # When a third receiver joins, no file moves between the first two.
        log.away = False
        log.others = (2, 3)
        eventually(lambda: sharing.version > version, "the third")
        assert {key for key in keys if sharing.is_ours(key)} < set(ours)
    finally:
        sharing.stop()
