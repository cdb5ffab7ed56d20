"""Test docs/how-to/listeners.md: commands and statements run, kinds and arguments are the program's, its file loads."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
import pyspark

from forebay.dagster import EventKind, event_sensor
from tests.support.commands.forked_command import programs
from tests.support.commands.run_program import run_program
from tests.support.driver_log.log import make_log, wait_until_told
from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    import pytest
    import sqlalchemy as sa

HOW_TO = Path(__file__).parents[3] / "docs" / "how-to"
PAGE = (HOW_TO / "listeners.md").read_text(encoding="utf-8")
_BLOCK = re.compile(r"^ *```(?P<language>sql|sh) runnable\n(?P<text>.*?)^ *```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"^```python file=(\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [(block["language"], block["text"]) for block in _BLOCK.finditer(PAGE)]


def test_commands_run(engine: sa.Engine, database_url: str, tmp_path: Path) -> None:
    with connect(engine) as connection:
        make_log(connection)
        wait_until_told(connection)
    [commands] = [text for language, text in BLOCKS if language == "sh"]
    done = run_program(
        ["sh", "-euc", commands],
        env={
            **os.environ,
            "FOREBAY_DATABASE_URL": database_url,
            "FOREBAY_HOME": str(tmp_path),
            **programs(),
        },
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("pipeline_started") == 2, "the newest events, and all as JSON"


def test_statements_run(engine: sa.Engine) -> None:
    statements = [text for language, text in BLOCKS if language == "sql"]
    assert len(statements) == 2
    with connect(engine) as connection:
        make_log(connection)
        for statement in statements:
            connection.exec_driver_sql(statement.replace("%", "%%"))


def test_every_kind_is_in_the_table_and_every_callback_of_spark_has_one() -> None:
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| *([^|]*?) *\|$", PAGE, re.MULTILINE)
    [start] = [number for number, (kind, _) in enumerate(rows) if kind == "batch_allocated"]
    assert [kind for kind, _ in rows[start:]] == list(EventKind)
    named = {name for _, callbacks in rows[start:] for name in re.findall(r"`(on\w+)`", callbacks)}
    [jar] = (Path(pyspark.__file__).parent / "jars").glob("spark-streaming_*.jar")
    with zipfile.ZipFile(jar) as archive:
        listener = archive.read("org/apache/spark/streaming/scheduler/StreamingListener.class")
    callbacks = {name.decode() for name in re.findall(rb"(?<![A-Za-z])on[A-Z][A-Za-z]+(?=[^A-Za-z$])", listener)}
    assert callbacks == named | {"onOutputOperationStarted"}
    assert "`onOutputOperationStarted` has no event" in PAGE


def test_every_argument_of_the_sensor_is_in_its_table() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `?[^|]+`? \| [^|]+ \|$", PAGE, re.MULTILINE)
    arguments = [name for name in inspect.signature(event_sensor).parameters if name != "function"]
    assert [name for name in rows if name not in list(EventKind)] == arguments


def test_its_file_loads_beside_the_pipeline_of_the_page_on_dagster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [(name, text)] = _FILE.findall(PAGE)
    (tmp_path / name).write_text(text, encoding="utf-8")
    pipelines = dict(_FILE.findall((HOW_TO / "dagster.md").read_text(encoding="utf-8")))["pipelines.py"]
    (tmp_path / "pipelines.py").write_text(pipelines, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    defs = importlib.import_module(name.removesuffix(".py")).defs
    assert isinstance(defs, dg.Definitions)
    repository = defs.get_repository_def()
    assert "tell_somebody" in {sensor.name for sensor in repository.sensor_defs}
    assert "tell_somebody" in {job.name for job in repository.get_all_jobs()}
