"""Attack a home and a folder of files as another account: it reads nothing, and what it puts in place is not read."""

from __future__ import annotations

import socket
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from forebay.cli.services.private_home import make_home_private
from tests.support.machine.another_account import as_nobody
from tests.unit.receiver_runtime.receivers.files.files_rig import Log
from tests.unit.receiver_runtime.receivers.files.followed.followed_rig import follow, write
from tests.unit.receiver_runtime.receivers.files.test_arriving import arriving, put

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.timeout(300)

# Prints what succeeded.
_LOOK_AROUND = """
home = sys.argv[1]
for name in ("", "logs", "run", "blocks", "results"):
    try:
        print("listed", os.listdir(os.path.join(home, name)))
    except OSError:
        pass
for name in ("logs/child.log", "blocks/1.segment", "results/part.parquet"):
    try:
        print("read", open(os.path.join(home, name)).read())
    except OSError:
        pass
with socket.socket(socket.AF_UNIX) as connection:
    try:
        connection.connect(os.path.join(home, "run/socket"))
        print("connected")
    except OSError:
        pass
print("looked", os.getuid())
"""

_EXCHANGE = """
os.chdir(sys.argv[1])
name, what = sys.argv[2], sys.argv[3]
os.unlink(name)
os.mkfifo(name) if what == "fifo" else os.symlink(what, name)
print("exchanged", os.getuid())
"""


def run(command: list[str]) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def everybodys() -> Iterator[Path]:
    """Return a directory in which every account may change every entry."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o777)
        yield Path(directory)


def test_another_account_neither_lists_nor_reads_a_home(everybodys: Path) -> None:
    home = everybodys / "home"
    # The files themselves are open, as a copy may have left them.
    for name in ("logs/child.log", "blocks/1.segment", "results/part.parquet"):
        (home / name).parent.mkdir(parents=True)
        (home / name).write_text("pl4nted")
        (home / name).chmod(0o666)
    (home / "run").mkdir()
    for directory in (home, *home.iterdir()):
        directory.chmod(0o777)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(home / "run" / "socket"))
        listener.listen()
        (home / "run" / "socket").chmod(0o777)
        # The attack succeeds on an open home, so that its failure says something.
        before = run(as_nobody(_LOOK_AROUND, str(home)))
        assert (before.count("listed"), before.count("pl4nted"), before.count("connected")) == (5, 3, 1)
        make_home_private(home)
        assert run(as_nobody(_LOOK_AROUND, str(home))).split() == ["looked", "65534"]


@pytest.mark.parametrize("what", ["link", "fifo"])
def test_what_another_account_puts_in_place_of_a_followed_file_is_not_read(
    everybodys: Path, tmp_path: Path, what: str
) -> None:
    write(everybodys / "a.log", "one")
    write(tmp_path / "secret.log", "root:$6$hash")
    log = Log()
    reader = follow(everybodys, log)
    reader.catalog.look()
    target = str(tmp_path / "secret.log") if what == "link" else what
    assert "exchanged 65534" in run(as_nobody(_EXCHANGE, str(everybodys), "a.log", target))
    reader.run(5)
    assert "root:$6$hash" not in log.values


@pytest.mark.parametrize("what", ["link", "fifo"])
def test_what_another_account_puts_in_place_of_an_arrived_file_is_not_read(
    everybodys: Path, tmp_path: Path, what: str
) -> None:
    put(everybodys / "a.txt", "one")
    put(tmp_path / "secret.txt", "root:$6$hash")
    log = Log()
    reader = arriving(everybodys, log)
    reader.catalog.look()
    target = str(tmp_path / "secret.txt") if what == "link" else what
    assert "exchanged 65534" in run(as_nobody(_EXCHANGE, str(everybodys), "a.txt", target))
    reader.run()
    assert log.values == []
