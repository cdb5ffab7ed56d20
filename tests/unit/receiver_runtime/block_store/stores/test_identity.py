"""Check a block store's identity: the same for every process that uses the directory, whatever path it uses."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from receiver_runtime.block_store.stores.identity import IDENTITY_FILE, identity_of, make_identity
from receiver_runtime.block_store.stores.local import LocalBlockStore
from receiver_runtime.block_store.stores.object_store import ObjectBlockStore
from tests.unit.receiver_runtime.memory_objects import MemoryObjects

if TYPE_CHECKING:
    import pytest


def test_one_directory_under_two_names_has_one_identity(tmp_path: Path) -> None:
    (tmp_path / "mounted_elsewhere").symlink_to(tmp_path / "blocks")
    here, there = LocalBlockStore(tmp_path / "blocks"), LocalBlockStore(tmp_path / "mounted_elsewhere")
    assert identity_of(here) is None
    assert not here.root.exists(), "asking has made something"
    made = make_identity(here)
    assert make_identity(there) == identity_of(there) == identity_of(here) == made


def test_two_directories_have_two_identities(tmp_path: Path) -> None:
    assert make_identity(LocalBlockStore(tmp_path / "a")) != make_identity(LocalBlockStore(tmp_path / "b"))


def test_concurrent_makers_all_get_the_same_identity(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as threads:
        stores = [LocalBlockStore(tmp_path / "blocks") for _ in range(64)]
        assert len(set(threads.map(make_identity, stores))) == 1
    assert [path.name for path in (tmp_path / "blocks").iterdir()] == [IDENTITY_FILE]


def test_identity_files_are_not_segments_even_if_a_crash_left_them_unfinished(tmp_path: Path) -> None:
    store = LocalBlockStore(tmp_path)
    make_identity(store)
    (tmp_path / f"{IDENTITY_FILE}.0123abcd").write_text("directory-", encoding="ascii")
    (tmp_path / "stray").write_bytes(b"")
    assert list(store.segment_paths()) == ["stray"]


def test_a_file_system_without_links_has_an_identity_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_self: Path, _target: Path) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    made = [make_identity(LocalBlockStore(tmp_path)) for _ in range(2)]
    assert made[0] == made[1]
    assert [path.name for path in tmp_path.iterdir()] == [IDENTITY_FILE]


def test_an_object_store_keeps_its_identity_in_an_object(tmp_path: Path) -> None:
    objects = MemoryObjects()
    store = ObjectBlockStore(objects, "s3://bucket/forebay")
    assert identity_of(store) is None
    assert objects.puts == [], "asking has made something"
    made = make_identity(store)
    assert made.startswith("objects-")
    assert make_identity(ObjectBlockStore(objects, "s3://other-name/forebay")) == identity_of(store) == made
    assert list(store.segment_paths()) == []
    assert make_identity(ObjectBlockStore(MemoryObjects(), "s3://bucket/forebay")) != made


def test_an_operator_may_choose_the_identity_of_an_empty_store(tmp_path: Path) -> None:
    assert make_identity(LocalBlockStore(tmp_path / "a"), "directory-1") == "directory-1"
    assert make_identity(LocalBlockStore(tmp_path / "a"), "directory-2") == "directory-1", "it is one already"
    assert make_identity(ObjectBlockStore(MemoryObjects(), "s3://bucket/forebay"), "objects-1") == "objects-1"
