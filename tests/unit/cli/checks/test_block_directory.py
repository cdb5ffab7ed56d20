"""Check what `forebay up` says of a block store before it starts: it refuses a setting, and waits for a directory."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from forebay.cli.checks import block_directory
from forebay.cli.checks.block_directory import check_roots
from receiver_runtime.block_store.frames.errors import BlockStoreError
from tests.support.polling import eventually

if TYPE_CHECKING:
    from pathlib import Path


def test_a_setting_that_names_no_store_is_refused() -> None:
    with pytest.raises(BlockStoreError, match="s4"):
        check_roots("s4://x", print)


def test_a_directory_that_can_not_be_written_is_told_and_another_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "a file").touch()
    (tmp_path / "blocks").mkdir()
    told: list[str] = []
    check_roots(f"/proc/blocks,{tmp_path}/blocks,{tmp_path}/a file/blocks", told.append)
    eventually(lambda: len(told) == 2, "two lines")
    assert [line.partition(" can't be written: ")[0] for line in told] == [
        "block store: /proc/blocks",
        f"block store: {tmp_path}/a file/blocks",
    ]
    assert all("Mount it" in line and "FOREBAY_BLOCK_STORE" in line for line in told)
    assert list((tmp_path / "blocks").iterdir()) == []


def test_one_that_does_not_answer_delays_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    monkeypatch.setattr(block_directory, "write_and_sync", lambda _: answers.wait(60))
    check_roots(str(tmp_path), print)
    answers.set()
