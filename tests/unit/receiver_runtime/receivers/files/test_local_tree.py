"""Attack the opening of files: links, FIFOs and exchanged directories must not make it read what lies elsewhere."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from receiver_runtime.receivers.files.content import LocalFile
from receiver_runtime.receivers.files.local_tree import LocalTree, SymlinkRefusedError
from tests.unit.receiver_runtime.receivers.files.files_rig import Log
from tests.unit.receiver_runtime.receivers.files.followed.followed_rig import compress, follow, write
from tests.unit.receiver_runtime.receivers.files.test_arriving import arriving, put

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "logs"
    root.mkdir()
    write(root / "a.log", "one")
    (tmp_path / "elsewhere").mkdir()
    write(tmp_path / "elsewhere" / "secret.log", "root:$6$hash")
    return root


def content_of(root: Path, path: Path, *, follow_symlinks: bool = False) -> bytes:
    content = LocalFile(str(path), LocalTree(str(root), follow_symlinks=follow_symlinks))
    try:
        return content.read(0, 100)
    finally:
        content.close()


@pytest.mark.parametrize("follow_symlinks", [False, True])
def test_a_link_never_leads_outside(root: Path, tmp_path: Path, *, follow_symlinks: bool) -> None:
    (root / "b.log").symlink_to(tmp_path / "elsewhere" / "secret.log")
    (root / "deep").symlink_to(tmp_path / "elsewhere")
    for path in (root / "b.log", root / "deep" / "secret.log", tmp_path / "elsewhere" / "secret.log"):
        with pytest.raises(SymlinkRefusedError) as refused:
            content_of(root, path, follow_symlinks=follow_symlinks)
        assert refused.value.errno == errno.ELOOP
        assert refused.value.filename == str(path)
    with pytest.raises(SymlinkRefusedError):
        content_of(root, root / "x" / ".." / ".." / "elsewhere" / "secret.log", follow_symlinks=follow_symlinks)


def test_links_below_the_directory_are_read_only_if_they_may_be_followed(root: Path) -> None:
    (root / "inner").mkdir()
    write(root / "inner" / "c.log", "three")
    (root / "b.log").symlink_to("a.log")
    (root / "also").symlink_to("inner")
    for path, value in ((root / "b.log", b"one\n"), (root / "also" / "c.log", b"three\n")):
        with pytest.raises(SymlinkRefusedError, match="follow_symlinks=True"):
            content_of(root, path)
        assert content_of(root, path, follow_symlinks=True) == value
    assert content_of(root, root / "inner" / "c.log") == b"three\n"


def test_the_directory_itself_may_be_a_link(root: Path, tmp_path: Path) -> None:
    (tmp_path / "current").symlink_to(root)
    for follow_symlinks in (False, True):
        assert content_of(tmp_path / "current", tmp_path / "current" / "a.log", follow_symlinks=follow_symlinks)


def test_a_fifo_or_a_device_is_refused_at_once(root: Path) -> None:
    os.mkfifo(root / "pipe.log")
    with pytest.raises(OSError, match="no regular file"):
        content_of(root, root / "pipe.log")
    with pytest.raises(OSError, match="no regular file"):
        LocalFile("/dev/zero")


@pytest.mark.timeout(60)
def test_a_file_that_becomes_a_link_or_a_fifo_after_the_look_is_not_read(root: Path, tmp_path: Path) -> None:
    log = Log()
    reader = follow(root, log)
    reader.catalog.look()
    (root / "a.log").unlink()
    (root / "a.log").symlink_to(tmp_path / "elsewhere" / "secret.log")
    reader.run()
    (root / "a.log").unlink()
    os.mkfifo(root / "a.log")
    reader.run()
    assert "root:$6$hash" not in log.values


def test_followed_links_are_named_once_and_not_read(root: Path, tmp_path: Path) -> None:
    log = Log()
    (root / "b.log").symlink_to(tmp_path / "elsewhere" / "secret.log")
    (root / "deep").symlink_to(tmp_path / "elsewhere")
    # The file is read by its own name, and there is nothing to be said about a second one, or about a link to nothing.
    (root / "again.log").symlink_to("a.log")
    (root / "nowhere.log").symlink_to("there is none")
    reader = follow(root, log, pattern="**/*.log*")
    reader.run(10)
    assert log.values == ["one"]
    assert sorted(error.split(" is not read")[0] for error in reader.supervisor.errors) == [
        f"{root}/b.log",
        f"{root}/deep/secret.log",
    ]


def test_followed_links_below_the_directory_are_read_where_they_may_be(root: Path, tmp_path: Path) -> None:
    log = Log()
    (root / ".data").mkdir()
    write(root / ".data" / "c", "three")
    (root / "c.log").symlink_to(".data/c")
    (root / "b.log").symlink_to(tmp_path / "elsewhere" / "secret.log")
    reader = follow(root, log, follow_symlinks=True)
    reader.run()
    assert sorted(log.values) == ["one", "three"]
    assert [f"outside {root}" in error for error in reader.supervisor.errors] == [True]


def test_a_compressed_file_behind_a_link_is_not_read(root: Path, tmp_path: Path) -> None:
    log = Log()
    compress(tmp_path / "elsewhere" / "secret.log", tmp_path / "elsewhere" / "secret.log.gz")
    (root / "b.log.gz").symlink_to(tmp_path / "elsewhere" / "secret.log.gz")
    write(root / "c.log", "three")
    compress(root / "c.log", root / "c.log.gz")
    follow(root, log).run()
    assert sorted(log.values) == ["one", "three"]


def test_arriving_links_are_named_once_and_read_only_below_the_directory(tmp_path: Path) -> None:
    root = tmp_path / "in"
    put(root / "a.txt", "one")
    put(root / ".data" / "c.txt", "three")
    put(tmp_path / "elsewhere" / "secret.txt", "root:$6$hash")
    (root / "b.txt").symlink_to(tmp_path / "elsewhere" / "secret.txt")
    (root / "c.txt").symlink_to(".data/c.txt")
    (root / "deep").symlink_to(tmp_path / "elsewhere")
    for follow_symlinks, values, refused in ((False, ["one"], 2), (True, ["one", "three"], 1)):
        log = Log()
        reader = arriving(root, log, follow_symlinks=follow_symlinks)
        reader.run(5)
        assert sorted(log.values) == values
        assert len(reader.supervisor.errors) == refused
        assert all("is not read" in error for error in reader.supervisor.errors)


def test_an_arrived_file_that_becomes_a_link_is_not_read(tmp_path: Path) -> None:
    root = tmp_path / "in"
    log = Log()
    put(root / "a.txt", "one")
    put(tmp_path / "secret.txt", "two")
    reader = arriving(root, log)
    reader.catalog.look()
    (root / "a.txt").unlink()
    (root / "a.txt").symlink_to(tmp_path / "secret.txt")
    reader.run()
    assert log.values == []
