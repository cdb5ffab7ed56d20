"""Check what the embedded server's account is given: programs it can run, and no directory that was opened for it."""

from __future__ import annotations

import os
import pwd
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tracker_store.connection.errors import DriverLogError
from tracker_store.server import server_account
from tracker_store.server.server_account import (
    ServerUser,
    can_execute,
    directory_as_started,
    programs_for,
    unprivileged_user,
)

USER = ServerUser("pgserver", 4_242, 4_243)


@pytest.fixture
def binaries(tmp_path: Path) -> Path:
    """Make what looks like an installation, with its libraries beside it, as under a strict umask."""
    folder = tmp_path / "site" / "package" / "install" / "bin"
    folder.mkdir(parents=True)
    program = folder / "postgres"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    headers = folder.parent / "include"
    headers.mkdir()
    libraries = tmp_path / "site" / "package.libs"
    libraries.mkdir(mode=0o700)
    (libraries / "libpq.so").write_text("")
    (libraries / "libpq.so").chmod(0o600)
    (tmp_path / "site").chmod(0o700)
    return folder


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(server_account, "PROGRAMS_DIRECTORY", tmp_path / "programs")
    # pytest's own directories are closed to other accounts.
    monkeypatch.setattr(server_account, "can_execute", lambda program, _user: (program.stat().st_mode & 0o005) == 0o005)
    return tmp_path / "programs"


def modes(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mode for path in (folder, *folder.rglob("*"))}


def test_programs_are_copied_for_an_account_that_cannot_run(binaries: Path, programs: Path, tmp_path: Path) -> None:
    before = modes(tmp_path / "site")
    copied = programs_for(binaries, USER)
    assert copied.is_relative_to(programs)
    assert (copied / "postgres").stat().st_mode & 0o777 == 0o755
    assert not (copied.parent / "include").exists()
    library = copied.parents[2] / "package.libs" / "libpq.so"
    assert library.stat().st_mode & 0o777 == 0o644
    for folder in (library.parent, copied, *copied.parents[:3], programs):
        assert folder.stat().st_mode & 0o777 == 0o755
    assert modes(tmp_path / "site") == before
    inode = (copied / "postgres").stat().st_ino
    assert programs_for(binaries, USER) == copied
    assert (copied / "postgres").stat().st_ino == inode, "it is copied once"
    assert len(list(programs.iterdir())) == 1


def test_the_callers_own_account_uses_the_installed_programs(binaries: Path, programs: Path) -> None:
    assert programs_for(binaries, None) == binaries
    assert not programs.exists()


def test_a_directory_in_which_others_could_put_programs_is_refused(binaries: Path, programs: Path) -> None:
    programs.mkdir()
    programs.chmod(0o777)
    with pytest.raises(DriverLogError, match="only root can write"):
        programs_for(binaries, USER)


def test_a_copy_that_fails_says_what_to_do(binaries: Path, programs: Path) -> None:
    programs.parent.joinpath("file").write_text("")
    programs.symlink_to(programs.parent / "file")
    with pytest.raises(DriverLogError, match="another user than root"):
        programs_for(binaries, USER)


@pytest.mark.parametrize(
    ("folder", "file", "expected"), [(0o711, 0o755, True), (0o710, 0o755, False), (0o711, 0o750, False)]
)
def test_an_account_needs_every_directory_and_the_file(folder: int, file: int, *, expected: bool) -> None:
    with TemporaryDirectory() as everybodys:
        inner = Path(everybodys) / "folder"
        inner.mkdir()
        program = inner / "postgres"
        program.write_text("")
        program.chmod(file)
        inner.chmod(folder)
        assert not can_execute(program, USER), "the directory above is closed"
        Path(everybodys).chmod(0o711)
        assert can_execute(program, USER) is expected


def test_an_account_starts_in_its_directory_and_names_it_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert directory_as_started(tmp_path, None) == tmp_path
    monkeypatch.setattr(server_account, "STARTED_IN", tmp_path)
    assert directory_as_started(Path("/elsewhere"), USER) == tmp_path
    monkeypatch.setattr(server_account, "STARTED_IN", tmp_path / "missing")
    with pytest.raises(DriverLogError, match="another user than root"):
        directory_as_started(Path("/elsewhere"), USER)


# In place of useradd: says so if another one runs at the same time, and makes no account.
_USERADD = """#!/bin/sh
mkdir "{folder}/inside" || touch "{folder}/two at once"
sleep 0.1
rmdir "{folder}/inside"
echo called >> "{folder}/calls"
"""


def test_processes_that_need_the_account_make_it_one_after_the_other(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert programs.parent == tmp_path
    monkeypatch.setattr(server_account, "_UNPRIVILEGED_USER", "forebay-no-such-account")
    monkeypatch.setattr(server_account, "SHARED_USER", pwd.getpwuid(os.getuid()).pw_name)
    useradd = tmp_path / "bin" / "useradd"
    useradd.parent.mkdir()
    useradd.write_text(_USERADD.format(folder=tmp_path))
    useradd.chmod(0o755)
    monkeypatch.setenv("PATH", f"{useradd.parent}:{os.environ['PATH']}")
    with ThreadPoolExecutor(4) as threads:
        users = [threads.submit(unprivileged_user) for _ in range(4)]
        assert {user.result(timeout=60).uid for user in users} == {os.getuid()}
    assert (tmp_path / "calls").read_text().count("called") == 4
    assert not (tmp_path / "two at once").exists()


def test_there_is_an_account_that_is_not_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root needs another account")
    assert unprivileged_user().uid != 0
