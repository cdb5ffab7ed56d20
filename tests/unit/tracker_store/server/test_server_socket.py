"""Check how clients name the embedded server's socket: by its path, or by a link that no other account made."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tracker_store.connection.errors import DriverLogError
from tracker_store.server import server_socket
from tracker_store.server.server_socket import MOST_PATH_BYTES, client_directory, socket_path_is_usable

NAME = "/.s.PGSQL.5432"


@pytest.fixture(autouse=True)
def _own_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_socket, "_LINKS", tmp_path)


def test_the_longest_path_is_used_and_one_byte_more_is_not() -> None:
    longest = Path("/" + "d" * (MOST_PATH_BYTES - len(NAME) - 1))
    assert client_directory(longest) == longest
    assert not socket_path_is_usable(Path(f"{longest}d"))


@pytest.mark.parametrize("path", ["/a b", "/a,b", "/ü", "/a:b", "/a%20b", "/a'b"])
def test_a_path_that_a_url_cannot_hold_gets_a_link(path: str) -> None:
    link = client_directory(Path(path))
    assert link.readlink() == Path(path)
    assert link.parent.stat().st_mode & 0o777 == 0o700
    assert socket_path_is_usable(link.parent / "0123456789abcdef") or len(str(link.parent)) > 70


def test_each_directory_has_one_link_which_is_made_again_when_it_is_gone() -> None:
    first, second = client_directory(Path("/a b")), client_directory(Path("/a c"))
    assert first != second
    assert client_directory(Path("/a b")) == first
    first.unlink()
    assert client_directory(Path("/a b")).readlink() == Path("/a b")


def test_a_link_that_leads_elsewhere_is_replaced() -> None:
    link = client_directory(Path("/a b"))
    link.unlink()
    link.symlink_to("/elsewhere")
    assert client_directory(Path("/a b")).readlink() == Path("/a b")


@pytest.mark.parametrize("mode", [0o777, 0o750])
def test_a_directory_of_links_that_others_may_enter_is_refused(tmp_path: Path, mode: int) -> None:
    own = tmp_path / f"forebay-{os.geteuid()}"
    own.mkdir()
    own.chmod(mode)
    with pytest.raises(DriverLogError, match="shorter path"):
        client_directory(Path("/a b"))


def test_a_link_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o700)
    (tmp_path / f"forebay-{os.geteuid()}").symlink_to(tmp_path / "theirs")
    with pytest.raises(DriverLogError, match="shorter path"):
        client_directory(Path("/a b"))


def test_a_directory_of_another_account_is_refused(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives a directory to another account")
    own = tmp_path / f"forebay-{os.geteuid()}"
    own.mkdir(mode=0o700)
    os.chown(own, 65534, 65534)
    with pytest.raises(DriverLogError, match="shorter path"):
        client_directory(Path("/a b"))
