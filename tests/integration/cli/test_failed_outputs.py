"""Test `forebay batches` on a batch that is quarantined with one of its two outputs committed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from forebay.cli.main import app
from orchestration.declarations.apply import apply
from orchestration.declarations.modules import load_pipelines
from tracker_store.schema.states import BatchState

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from pathlib import Path

    from typer.testing import Result

    from tests.support.spark.batch_rig import System

pytestmark = pytest.mark.spark

# `counts` fails until the file `mended` exists; `other` notes each call in a file.
MODULE = """
from pathlib import Path

from forebay import ParquetSink, Pipeline, Stream
from forebay.sources import SocketText

HERE = Path(__file__).parent
lines = Stream("lines", SocketText(host="127.0.0.1", port=9999))
words = Pipeline("words", interval="1h", max_attempts=1)


@words.output(inputs=[lines], sink=ParquetSink(HERE / "output"))
def counts(lines):
    if not (HERE / "mended").exists():
        raise ValueError("no number: 'x'")
    return lines


@words.output(inputs=[lines], sink=ParquetSink(HERE / "other"))
def other(lines):
    with (HERE / "calls").open("a") as calls:
        calls.write("called ")
    return lines
"""


@pytest.fixture
def system(system: System, declare: Callable[[str], None]) -> System:
    declare(MODULE)
    return system


@pytest.fixture
def quarantined(system: System, tmp_path: Path) -> datetime:
    """Return the time of a batch of which `other` is committed and `counts` is not."""
    [pipeline] = load_pipelines(str(tmp_path / "words_module.py"))
    apply(system.connection, [pipeline])
    system.receive(["a"], ["b"])
    time = system.allocate(1)
    with pytest.raises(Exception, match="no number"):
        system.run(pipeline, time, 1)
    assert system.state(time) == (BatchState.QUARANTINED, 1)
    return time


def forebay(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def test_a_partially_committed_batch_says_so_and_how_to_complete_it(
    system: System, tmp_path: Path, quarantined: datetime
) -> None:
    name = f"{quarantined:%Y-%m-%dT%H:%M:%SZ}"
    listed = " ".join(forebay("batches").stdout.split())
    assert "partially committed (only other): 1 of 2 outputs failed: counts: ValueError: no number" in listed
    shown = forebay("batches", "show", "words", name).stdout
    assert "  counts: FAILED in attempt 1: ValueError: no number: 'x'\n" in shown
    assert "  other: of attempt 1, 2 rows, " in shown
    assert "This batch is partially committed: other committed; counts not.\n" in shown
    command = f"forebay batches replay words {name} --failed-outputs-only"
    assert f"This runs only those without a result: {command}\n" in shown
    answer = json.loads(forebay("batches", "show", "words", name, "--json").stdout)
    assert [output["output"] for output in answer["outputs"]] == ["other"]
    assert [(output["output"], output["state"], output["error"]) for output in answer["outputs_without_result"]] == [
        ("counts", "FAILED", "ValueError: no number: 'x'")
    ]
    assert answer["partially_committed"] is True
    for statement in answer["sql"].values():
        system.connection.exec_driver_sql(statement)

    (tmp_path / "mended").touch()
    done = forebay(*command.split()[1:])
    assert (done.exit_code, "replayed: counts 2 rows in" in done.stdout) == (0, True), done.output
    assert system.state(quarantined) == (BatchState.COMPLETED, 2)
    assert system.published() == ["a", "b"]
    assert (tmp_path / "calls").read_text(encoding="utf-8") == "called "
    shown = forebay("batches", "show", "words", name).stdout
    assert "partially committed" not in shown
    assert "counts: of attempt 2" in shown


def test_without_a_time_it_takes_the_newest_quarantined_batch(
    system: System, tmp_path: Path, quarantined: datetime
) -> None:
    (tmp_path / "mended").touch()
    done = json.loads(forebay("batches", "replay", "words", "--failed-outputs-only", "--json").stdout)
    assert [(row["batch_time"], row["outcome"]) for row in done["batches"]] == [(quarantined.isoformat(), "replayed")]
    assert (tmp_path / "calls").read_text(encoding="utf-8") == "called "
    for arguments in ((), (quarantined.isoformat(),)):
        again = forebay("batches", "replay", "words", *arguments, "--failed-outputs-only")
        assert again.exit_code == 1
        assert "QUARANTINED" in again.output or "no batch is quarantined" in again.output
