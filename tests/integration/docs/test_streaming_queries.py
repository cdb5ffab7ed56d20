"""Test docs/how-to/streaming-queries.md: its programs are killed by SIGKILL, and each record comes out once."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from orchestration.spark.reading import stream_reader
from tests.integration.docs.streaming_program import StreamingProgram
from tests.support.commands.run_program import run_program

if TYPE_CHECKING:
    from tests.support.driver_log.stored_lines import LineReceiver

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "how-to" / "streaming-queries.md").read_text(encoding="utf-8")
PROGRAMS = dict(re.findall(r"^```python program=(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
COMMANDS = re.findall(r"^```sh runnable\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
STATEMENTS = re.findall(r"^```sql runnable\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


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
@pytest.mark.timeout(1250)
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
        query = StreamingProgram(name, PROGRAMS[name], environment, tmp_path)
        try:
            # Kill it while it works: it continues reading while more records come.
            least = total()
            query.until(lambda: receive() and total() >= least + 60, "progress")  # noqa: B023
        finally:
            query.kill()
    query = StreamingProgram(name, PROGRAMS[name], environment, tmp_path)
    try:
        query.until(lambda: total() >= len(wanted), "the rest")
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
    done = run_program(["sh", "-euc", command], env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_statement(connection: sa.Connection, statement: str) -> None:
    assert connection.execute(sa.text(statement)).all() == []


def test_the_options_are_the_programs() -> None:
    named = {name.lower() for name in re.findall(r"^\| `(\w+)` \| ", PAGE, re.MULTILINE)}
    assert {stream_reader.MAX_BLOCKS, stream_reader.MAX_RECORDS, "stream", "reader", "start"} <= named
    assert (len(PROGRAMS), len(COMMANDS), len(STATEMENTS)) == (2, 1, 1)
