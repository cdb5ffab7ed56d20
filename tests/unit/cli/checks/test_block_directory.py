"""Check which block stores `forebay up` refuses before anything starts, and which it leaves to the receivers."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from forebay.cli.checks import block_directory
from forebay.cli.checks.block_directory import refuse_unusable_store
from receiver_runtime.block_store.frames.errors import BlockStoreError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("setting", ["s4://x", "/proc/blocks", "/proc/blocks,{here}/a file/blocks", "{here}/a file"])
def test_what_can_never_be_written_is_refused(setting: str, tmp_path: Path) -> None:
    (tmp_path / "a file").touch()
    with pytest.raises(BlockStoreError, match="FOREBAY_BLOCK_STORE") as raised:
        refuse_unusable_store(setting.format(here=tmp_path))
    assert "\n" not in str(raised.value)


def test_one_replica_that_can_be_written_is_enough_and_nothing_is_left(tmp_path: Path) -> None:
    refuse_unusable_store(f"/proc/blocks,{tmp_path}/blocks")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_root: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(block_directory, "write_and_sync", full)
    refuse_unusable_store(str(tmp_path))
