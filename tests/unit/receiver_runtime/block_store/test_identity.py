"""Which block store it is: the same for all who see one directory, whatever they call it."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from receiver_runtime.block_store.identity import identity_of, make_identity
from receiver_runtime.block_store.local import IDENTITY_FILE, LocalBlockStore
from receiver_runtime.block_store.stores import open_block_store, replicas_of

if TYPE_CHECKING:
    import pytest


def test_one_directory_under_two_names_has_one_identity(tmp_path: Path) -> None:
    (tmp_path / "mounted_elsewhere").symlink_to(tmp_path / "blocks")
    here, there = LocalBlockStore(tmp_path / "blocks"), LocalBlockStore(tmp_path / "mounted_elsewhere")
    assert identity_of(here) is None
    assert not here.root.exists(), "asking has made something"
    made = make_identity(here)
    assert make_identity(there) == identity_of(there) == identity_of(here) == made


def test_two_directories_have_two(tmp_path: Path) -> None:
    assert make_identity(LocalBlockStore(tmp_path / "a")) != make_identity(LocalBlockStore(tmp_path / "b"))


def test_of_many_who_make_it_at_once_all_get_the_same(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as threads:
        stores = [LocalBlockStore(tmp_path / "blocks") for _ in range(64)]
        assert len(set(threads.map(make_identity, stores))) == 1
    assert [path.name for path in (tmp_path / "blocks").iterdir()] == [IDENTITY_FILE]


def test_it_is_no_segment_and_neither_is_one_that_a_crash_left_unfinished(tmp_path: Path) -> None:
    store = LocalBlockStore(tmp_path)
    make_identity(store)
    (tmp_path / f"{IDENTITY_FILE}.0123abcd").write_text("directory-", encoding="ascii")
    (tmp_path / "stray").write_bytes(b"")
    assert list(store.segment_paths()) == ["stray"]


def test_a_file_system_without_links_has_one_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_self: Path, _target: Path) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    made = [make_identity(LocalBlockStore(tmp_path)) for _ in range(2)]
    assert made[0] == made[1]
    assert [path.name for path in tmp_path.iterdir()] == [IDENTITY_FILE]


def test_an_object_stores_is_its_url_without_secrets() -> None:
    [store] = replicas_of(open_block_store("s3://key:secret@bucket/forebay?region=eu-central-1"))
    assert make_identity(store) == identity_of(store) == "s3://bucket/forebay"
