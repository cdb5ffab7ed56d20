"""Test docs/how-to/streaming-queries.md: its programs are killed by SIGKILL, and each record comes out once."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from forebay import Stream
from forebay.sources import SocketText
from orchestration.java import find_java_home
from orchestration.settings import Settings
from orchestration.spark import stream_reader
from tests.polling import eventually
from tests.stored_lines import LineReceiver
from tracker_store.engine import connect
from tracker_store.pipelines import apply_stream
from tracker_store.receivers import placements

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "how-to" / "streaming-queries.md").read_text(encoding="utf-8")
PROGRAMS = dict(re.findall(r"^```python program=(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
COMMANDS = re.findall(r"^```sh runnable\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
STATEMENTS = re.findall(r"^```sql runnable\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def environment(database_url: str, tmp_path: Path) -> dict[str, str]:
    return {
        **os.environ,
        "FOREBAY_DATABASE_URL": database_url,
        "FOREBAY_HOME": str(tmp_path / "home"),
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }


@pytest.fixture
def lines(engine: sa.Engine, environment: dict[str, str]) -> Iterator[LineReceiver]:
    settings = Settings(home=Path(environment["FOREBAY_HOME"]))
    with connect(engine) as connection:
        stream = Stream("lines", SocketText(host="127.0.0.1", port=9999))
        apply_stream(connection, name="lines", declaration=stream.declaration(), receivers=1)
        [placement] = placements(connection)
        receiver = LineReceiver(connection, settings.block_store_roots, placement.receiver_id)
        yield receiver
        receiver.close()


class Query:
    """A program of the page that runs in its own process group, together with its JVM."""

    def __init__(self, name: str, environment: dict[str, str], directory: Path) -> None:
        program = directory / f"{name}.py"
        program.write_text(PROGRAMS[name], encoding="utf-8")
        self._log = (directory / f"{name}.log").open("ab")
        java = {"JAVA_HOME": str(find_java_home(directory / "java"))}
        self._process = subprocess.Popen(
            [sys.executable, str(program)],
            cwd=directory,
            env={**environment, **java},
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30)
        self._log.close()

    def lives(self) -> bool:
        return self._process.poll() is None


def live(directory: Path) -> list[str]:
    parts = sorted(directory.glob("live/*.json"), key=lambda path: int(path.stem))
    return [value for part in parts for value in json.loads(part.read_text())]


def counts(directory: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in sorted(directory.glob("counts/*.json"), key=lambda path: int(path.stem)):
        found |= json.loads(part.read_text())
    return found


@pytest.mark.spark
@pytest.mark.cluster
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", PROGRAMS)
def test_each_record_comes_out_once_even_if_the_query_is_killed(
    name: str, environment: dict[str, str], lines: LineReceiver, tmp_path: Path
) -> None:
    wanted: list[str] = []

    def total() -> int:
        return len(live(tmp_path)) if name == "live" else sum(counts(tmp_path).values())

    def receive() -> bool:
        block = [f"word{n % 3} {len(wanted) + n}" for n in range(20)]
        lines.receive(block)
        wanted.extend(block)
        return True

    receive()
    for _ in range(3):
        query = Query(name, environment, tmp_path)
        try:
            # Kill it while it works: it continues reading while more records come.
            least = total()
            eventually(lambda: receive() and total() >= least + 60, "progress", seconds=150, step=0.2)  # noqa: B023
            assert query.lives()
        finally:
            query.kill()
    query = Query(name, environment, tmp_path)
    try:
        eventually(lambda: total() >= len(wanted), "the rest", seconds=150, step=0.2)
    finally:
        query.kill()
    if name == "live":
        assert live(tmp_path) == wanted
    else:
        assert counts(tmp_path) == {
            f"word{n}": sum(1 for line in wanted if line.startswith(f"word{n} ")) for n in range(3)
        }


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command(engine: sa.Engine, environment: dict[str, str], tmp_path: Path, command: str) -> None:
    done = subprocess.run(
        ["sh", "-euc", command], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_statement(engine: sa.Engine, statement: str) -> None:
    with connect(engine) as connection:
        assert connection.execute(sa.text(statement)).all() == []


def test_the_options_are_the_programs() -> None:
    named = {name.lower() for name in re.findall(r"^\| `(\w+)` \| ", PAGE, re.MULTILINE)}
    assert {stream_reader.MAX_BLOCKS, stream_reader.MAX_RECORDS, "stream", "reader", "start"} <= named
    assert (len(PROGRAMS), len(COMMANDS), len(STATEMENTS)) == (2, 1, 1)
