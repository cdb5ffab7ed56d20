"""Check that log files are the owner's alone, and are rolled while a process writes to them, without losing lines."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.support.polling import eventually
from tracker_store.host.log_files import MOST_KEPT, LogRoller, open_log, roll

if TYPE_CHECKING:
    from pathlib import Path

_NOBODY = 65534
_SECONDS = 60.0
_HOLDER = """
import fcntl, sys
file = open(sys.argv[1])
fcntl.flock(file, fcntl.LOCK_EX)
print(flush=True)
sys.stdin.read()
"""


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_log_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        new, old = tmp_path / "new.log", tmp_path / "old.log"
        old.write_text("of a run before\n")
        old.chmod(0o644)
        for path in (new, old):
            with open_log(path) as log:
                log.write(b"secret\n")
            assert mode(path) == 0o600
        assert old.read_text() == "of a run before\nsecret\n"
        roll(old, most_bytes=1)
        assert mode(old.with_name("old.log.1")) == 0o600
    finally:
        os.umask(before)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process as another account")
def test_another_account_can_not_read_a_log(tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and folder.name.startswith("pytest-"):
            folder.chmod(0o755)
    path = tmp_path / "child.log"
    with open_log(path) as log:
        log.write(b"Authorization: Bearer pl4nted\n")
    roll(path, most_bytes=1)
    with open_log(path) as log:
        log.write(b"Authorization: Bearer pl4nted\n")
    cat = shutil.which("cat")
    assert cat is not None
    for name in ("child.log", "child.log.1"):
        tried = subprocess.run(
            [cat, tmp_path / name],
            check=False,
            user=_NOBODY,
            group=_NOBODY,
            extra_groups=[],
            capture_output=True,
            timeout=120,
        )
        assert (tried.returncode, tried.stdout) == (1, b""), tried.stderr


def test_a_log_is_rolled_while_a_process_writes_to_it(tmp_path: Path) -> None:
    path = tmp_path / "child.log"
    with open_log(path) as log:
        child = subprocess.Popen(
            [sys.executable, "-uc", "import sys\nfor line in sys.stdin: print(line, end='')"],
            stdin=subprocess.PIPE,
            stdout=log,
        )
    assert child.stdin is not None
    roller = LogRoller(tmp_path, most_bytes=1000, every=0.01).start()
    try:
        for number in range(1, MOST_KEPT + 3):
            child.stdin.write(b"%d " % number + b"x" * 1000 + b"\n")
            child.stdin.flush()
            eventually(partial(is_rolled, path, number), "the line in .1", seconds=_SECONDS)
            eventually(lambda: path.stat().st_size == 0, "the cut", seconds=_SECONDS)
        child.stdin.write(b"last\n")
        child.stdin.close()
        assert child.wait(_SECONDS) == 0
    finally:
        roller.stop()
        child.kill()
    assert path.read_bytes() == b"last\n"
    kept = sorted(one.name for one in tmp_path.iterdir())
    assert kept == ["child.log", *(f"child.log.{number}" for number in range(1, MOST_KEPT + 1))]
    assert rolled(path, 2).startswith(b"%d " % (MOST_KEPT + 1))


def is_rolled(path: Path, number: int) -> bool:
    return rolled(path, 1).startswith(b"%d " % number)


def rolled(path: Path, number: int) -> bytes:
    try:
        return path.with_name(f"{path.name}.{number}").read_bytes()
    except FileNotFoundError:
        return b""


def test_a_log_that_another_process_rolls_is_left_to_it(tmp_path: Path) -> None:
    path = tmp_path / "child.log"
    path.write_bytes(b"x" * 10)
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            _HOLDER,
            path,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert not roll(path, most_bytes=1)
    finally:
        holder.communicate(timeout=_SECONDS)
    assert roll(path, most_bytes=1)
    assert path.read_bytes() == b""


def test_a_log_whose_older_files_can_not_be_moved_is_left_whole(tmp_path: Path) -> None:
    path = tmp_path / "child.log"
    path.write_bytes(b"x" * 2000)
    path.with_name(f"{path.name}.{MOST_KEPT - 1}").touch()
    path.with_name(f"{path.name}.{MOST_KEPT}").mkdir()
    with pytest.raises(OSError, match=f"child.log.{MOST_KEPT}"):
        roll(path, most_bytes=1000)
    assert path.read_bytes() == b"x" * 2000


def test_a_roll_does_not_write_through_a_link(tmp_path: Path) -> None:
    path, elsewhere = tmp_path / "child.log", tmp_path / "elsewhere"
    path.write_bytes(b"x" * 2000)
    path.with_name(f"{path.name}.1").symlink_to(elsewhere)
    assert roll(path, most_bytes=1000)
    assert (rolled(path, 1), path.read_bytes(), elsewhere.exists()) == (b"x" * 2000, b"", False)
