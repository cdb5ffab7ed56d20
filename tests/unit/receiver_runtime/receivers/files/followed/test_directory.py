"""Check the directory of followed files when it, or a file in it, is unavailable."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from receiver_runtime.receivers.files.followed.directory import LookSchedule
from tests.unit.receiver_runtime.receivers.files.files_rig import Log
from tests.unit.receiver_runtime.receivers.files.followed.followed_rig import follow, write

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_missing_directory_is_reported_once_and_nothing_is_lost(tmp_path: Path) -> None:
    root = tmp_path / "logs"
    root.mkdir()
    log = Log()
    write(root / "a.log", "one")
    reader = follow(root, log)
    reader.run()
    root.rename(tmp_path / "elsewhere")
    reader.run(20)
    assert [error for error in reader.supervisor.errors if "can't be listed" in error] == reader.supervisor.errors
    assert len(reader.supervisor.errors) == 1
    (tmp_path / "elsewhere").rename(root)
    write(root / "a.log", "two")
    reader.run()
    assert log.values == ["one", "two"]
    assert log.lost() == 0


def test_an_unreadable_file_is_reported_once_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    write(tmp_path / "a.log", "one")
    write(tmp_path / "b.log", "other")
    really_open = os.open

    def refuse(path: Any, flags: int, *more: Any, **named: Any) -> int:  # noqa: ANN401  the types of os.open
        if str(path).endswith("a.log"):
            raise PermissionError(13, "Permission denied", path)
        return really_open(path, flags, *more, **named)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        reader = follow(tmp_path, log)
        reader.run(5)
    assert log.values == ["other"]
    assert len(reader.supervisor.errors) == 1
    assert "Permission denied" in reader.supervisor.errors[0]
    reader.run()
    assert sorted(log.values) == ["one", "other"]


def test_it_is_listed_at_intervals_or_at_once_when_a_caller_asks() -> None:
    schedule = LookSchedule(2.0)
    assert schedule.is_due(10.0)
    schedule.begin(10.0)
    assert not schedule.is_due(11.9)
    assert schedule.is_due(12.0)
    schedule.hurry()
    assert schedule.is_due(10.1)
