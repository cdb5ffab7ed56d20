"""Check bindings: no content is in two places, and what is open and known is updated with each change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from receiver_runtime.receivers.files.content import LocalFile
from receiver_runtime.receivers.files.followed.contents.followed_file import key_of
from receiver_runtime.receivers.files.records import Reading
from tests.unit.receiver_runtime.receivers.files.files_rig import HOST, Log
from tests.unit.receiver_runtime.receivers.files.followed.followed_rig import follow, write
from tracker_store.blocks.blocks import Position

if TYPE_CHECKING:
    from pathlib import Path

    from receiver_runtime.receivers.files.followed.bindings import Bindings
    from receiver_runtime.receivers.files.followed.contents.followed_file import FollowedFile
    from receiver_runtime.receivers.files.followed.contents.known_contents import KnownContents
    from receiver_runtime.receivers.files.followed.reading import OpenFiles

NAME = f"{HOST}/1/4-abc"


class Rig:
    """Holds the bindings of a catalog that has not looked yet."""

    def __init__(self, root: Path) -> None:
        catalog = follow(root, Log()).catalog
        self.root = root
        self.bindings: Bindings = catalog._bindings
        self.known: KnownContents = catalog._known
        self.open: OpenFiles = catalog._open

    def add(self, name: str) -> FollowedFile:
        path = self.root / name
        write(path, "one")
        status = path.stat()
        self.bindings.add(key_of(status), str(path), status, 0.0)
        file = self.bindings.file_at(key_of(status))
        assert file is not None
        return file

    def bind(self, file: FollowedFile, *, logged: int = -1) -> None:
        reading = Reading(NAME)
        if logged >= 0:
            reading.go_to(Position(0, logged))
        file.fingerprint = (4, "abc")
        self.bindings.bind(file, reading)
        self.open.keep_plain(NAME, LocalFile(file.path))


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_a_bound_file_has_its_name_and_a_known_fingerprint(rig: Rig) -> None:
    file = rig.add("a.log")
    rig.bind(file)
    assert rig.bindings.named(NAME) is file
    assert rig.known.index.with_fingerprint((4, "abc")) == {NAME}
    assert list(rig.known.index.begun_in(file.inode)) == [NAME]


def test_an_unbound_file_stays_without_its_content(rig: Rig) -> None:
    file = rig.add("a.log")
    rig.bind(file)
    rig.bindings.unbind(file)
    assert rig.bindings.files() == [file]
    assert file.reading is None
    assert not rig.bindings.names()
    assert rig.known.index.with_fingerprint((4, "abc")) == set()
    assert rig.open.plain(NAME) is None


def test_the_content_of_a_replaced_file_has_no_file_and_keeps_its_name(rig: Rig) -> None:
    file = rig.add("a.log")
    key = file.key
    rig.bind(file)
    rig.bindings.replace(file)
    [new, content] = rig.bindings.contents()
    assert content is file
    assert (content.key, content.last_key) == (None, key)
    assert (new.key, new.reading) == (key, None)
    assert rig.bindings.named(NAME) is content
    assert rig.open.plain(NAME) is None
    assert rig.bindings.replacements == 1


def test_a_content_moves_into_its_copy(rig: Rig) -> None:
    file, copy = rig.add("a.log"), rig.add("a.log.1")
    key = copy.key
    rig.bind(file)
    rig.bindings.replace(file)
    rig.bindings.move(file, copy)
    assert rig.bindings.file_at(key) is file
    assert file.path.endswith("a.log.1")
    assert len(rig.bindings.contents()) == len(rig.bindings.files()) == 2
    assert rig.bindings.named(NAME) is file


@pytest.mark.parametrize(("is_refused", "registered"), [(False, Position(0, 4)), (True, None)])
def test_the_position_of_a_dropped_content_is_kept_unless_it_was_refused(
    rig: Rig, registered: Position | None, *, is_refused: bool
) -> None:
    file = rig.add("a.log")
    rig.bind(file, logged=4)
    rig.bindings.drop(file, is_refused=is_refused)
    assert rig.bindings.contents() == []
    assert not rig.bindings.names()
    assert rig.known.registered(NAME) == registered
