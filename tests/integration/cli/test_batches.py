"""Test `forebay batches` and `forebay blocks records`: list, show, replay in this process, bisect, discard."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from forebay.cli.main import app
from forebay.cli.terminal import confirmation
from orchestration.declarations.apply import apply
from orchestration.declarations.modules import load_pipelines
from tests.support.commands.run_program import run_program
from tracker_store.schema.states import BatchState

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from typer.testing import Result

    from orchestration.declarations.pipeline import Pipeline
    from tests.support.spark.batch_rig import System

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"

# Fails for the word "poison" until the file `mended` exists.
MODULE = """
from pathlib import Path

from forebay import ParquetSink, Pipeline, Stream
from forebay.sources import SocketText

HERE = Path(__file__).parent
lines = Stream("lines", SocketText(host="127.0.0.1", port=9999))
words = Pipeline("words", interval="1h", max_attempts=1, on_failure="halt")


@words.output(inputs=[lines], sink=ParquetSink(HERE / "output"), name="counts")
def counts(lines):
    if (HERE / "mended").exists():
        return lines
    return lines.selectExpr("CASE WHEN value = 'poison' THEN raise_error('bad word') ELSE value END AS value")
"""


@pytest.fixture
def system(system: System, declare: Callable[[str], None]) -> System:
    declare(MODULE)
    return system


@pytest.fixture
def quarantined(system: System, tmp_path: Path) -> tuple[Pipeline, datetime]:
    """Return the pipeline and its batch of five blocks, the fourth of which is poison: marker 1, blocks 2 to 6."""
    [pipeline] = load_pipelines(str(tmp_path / "words_module.py"))
    apply(system.connection, [pipeline])
    system.receive(["a"], ["b"], ["c"], ["d", "poison"], ["e"])
    time = system.allocate(1)
    with pytest.raises(Exception, match="bad word"):
        system.run(pipeline, time, 1)
    assert system.state(time) == (BatchState.QUARANTINED, 1)
    return pipeline, time


def commands(page: str, first: datetime, second: datetime) -> list[list[str]]:
    """Return the words of every line of a page that begins with `$ forebay`, with the times of these two batches."""
    text = (DOCS / page).read_text(encoding="utf-8")
    times = {"2026-01-31T12:00:00Z": first.isoformat(), "2026-01-31T13:00:00Z": second.isoformat()}
    return [
        [times.get(word, word) for word in shlex.split(line)]
        for line in re.findall(r"^\$ forebay (.*)$", text, re.MULTILINE)
    ]


def forebay(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def test_a_quarantined_batch_is_seen_bisected_and_replayed(
    system: System, tmp_path: Path, quarantined: tuple[Pipeline, datetime]
) -> None:
    _, time = quarantined
    name = f"{time:%Y-%m-%dT%H:%M:%SZ}"

    listed = forebay("batches")
    assert "QUARANTINED" in listed.stdout
    assert f'words is halted (on_failure="halt"): batch {time.isoformat()} is quarantined' in listed.stdout
    answer = json.loads(forebay("batches", "--pipeline", "words", "--state", "QUARANTINED", "--json").stdout)
    assert [(row["batch_time"], row["records"], row["attempt"]) for row in answer["batches"]] == [
        (time.isoformat(), 6, 1)
    ]
    assert answer["halted"] == {"words": time.isoformat()}
    assert json.loads(forebay("batches", "--state", "COMPLETED", "--json").stdout)["batches"] == []
    assert json.loads(forebay("batches", "--from", "2100-01-01", "--json").stdout)["batches"] == []

    shown = json.loads(forebay("batches", "show", "words", name, "--json").stdout)
    assert [block["sequence"] for block in shown["blocks"]] == [2, 3, 4, 5, 6]
    assert [(attempt["kind"], attempt["state"]) for attempt in shown["attempts"]] == [("run", "FAILED")]
    assert shown["outputs"] == []
    for statement in shown["sql"].values():
        system.connection.exec_driver_sql(statement)
    # First what became of it and why, and its many blocks last.
    said = forebay("batches", "show", "words", name).stdout
    sought = (
        "QUARANTINED",
        "Outputs:",
        "Attempts:",
        "bad word",
        "SQL:",
        "Read from its sources:",
        "lines/1 5: 2 records",
    )
    assert sorted(sought, key=said.rindex) == list(sought), said

    found = forebay("batches", "bisect", "words", name, "--json")
    assert found.exit_code == 1
    answer = json.loads(found.stdout)
    [culprit] = answer["culprits"]
    assert [(block["receiver"], block["sequence"], block["records"]) for block in culprit["blocks"]] == [
        ("lines/1", 5, 2)
    ]
    assert "bad word" in culprit["error"]
    [record] = culprit["records"]
    assert (record["first"], record["last"], "bad word" in record["error"]) == (1, 1, True)
    assert system.state(time) == (BatchState.QUARANTINED, 1)
    assert system.published() == []

    records = forebay("blocks", "records", "lines/1", "5")
    assert [json.loads(line) for line in records.stdout.splitlines()] == [{"value": "d"}, {"value": "poison"}]
    for suffix in ("parquet", "jsonl"):
        assert (
            forebay(
                "blocks", "records", "lines/1", "5", "--limit", "1", "--to", str(tmp_path / f"b.{suffix}")
            ).exit_code
            == 0
        )
    assert pq.read_table(tmp_path / "b.parquet")["value"].to_pylist() == ["d"]
    assert (tmp_path / "b.jsonl").read_text(encoding="utf-8") == '{"value": "d"}\n'
    assert forebay("blocks", "records", "lines/1", "99").exit_code == 1

    failed = forebay("batches", "replay", "words", name)
    assert (failed.exit_code, "1 of 1: " in failed.stdout, "bad word" in failed.stdout) == (1, True, True)
    assert system.state(time) == (BatchState.QUARANTINED, 1)

    (tmp_path / "mended").touch()
    assert "Nothing fails" in forebay("batches", "bisect", "words", name).stdout
    done = json.loads(forebay("batches", "replay", "words", "--from", name, "--to", name, "--json").stdout)
    assert [(row["batch_time"], row["outcome"]) for row in done["batches"]] == [(time.isoformat(), "replayed")]
    assert system.state(time) == (BatchState.COMPLETED, 3)
    assert system.published() == ["a", "b", "c", "d", "e", "poison"]
    assert json.loads(forebay("batches", "--json").stdout)["halted"] == {}


@pytest.mark.slow
@pytest.mark.core
def test_a_process_of_its_own_prints_progress_and_result_and_names_the_file_that_has_the_rest(
    quarantined: tuple[Pipeline, datetime], tmp_path: Path
) -> None:
    done = run_program(
        [sys.executable, "-m", "forebay.cli", "batches", "replay", "words", "--failed-outputs-only"],
        cwd=ROOT,
        timeout=600,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    path = tmp_path / "logs" / "replay-words.log"
    assert f"What Spark prints: {path}" in done.stdout
    assert "bad word" in done.stdout
    assert len(done.stdout + done.stderr) < 2_000, done.stdout + done.stderr
    assert "org.apache.spark" not in done.stdout + done.stderr
    noise = path.read_text(encoding="utf-8")
    assert "org.apache.spark" in noise
    assert len(noise) > len(done.stdout)


def test_a_batch_is_discarded_only_with_a_confirmation(
    system: System, quarantined: tuple[Pipeline, datetime], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confirmation, "is_terminal", lambda: True)
    _, time = quarantined
    name = time.isoformat()
    refused = CliRunner().invoke(app, ["batches", "discard", "words", name], input="n\n")
    assert refused.exit_code == 1
    assert "6 records, which will never come out" in refused.stdout
    assert system.state(time)[0] is BatchState.QUARANTINED
    done = forebay("batches", "discard", "words", name, "--yes")
    assert (done.exit_code, done.stdout) == (0, "Discarded: 6 records; clean-up deletes what was kept for it.\n")
    assert system.state(time) == (BatchState.DISCARDED, 1)
    assert system.connection.execute(sa.text("SELECT halted_by FROM forebay.pipelines")).scalar_one() is None
    again = forebay("batches", "discard", "words", name, "--yes")
    assert (again.exit_code, "is DISCARDED" in again.stdout) == (1, True)
    gone = forebay("batches", "replay", "words", name)
    assert (gone.exit_code, "is COMPLETED or QUARANTINED" in gone.stdout) == (1, True)


def test_invalid_requests_are_reported(system: System, quarantined: tuple[Pipeline, datetime]) -> None:
    assert system.state(quarantined[1])[0] is BatchState.QUARANTINED
    for arguments, said in (
        (("show", "words", "noon"), "'noon' is no time"),
        (("show", "words", "2026-01-01T00:00:00Z"), "has no batch at 2026-01-01"),
        (("show", "other", "2026-01-01T00:00:00Z"), "'other' is not in the driver log"),
        (("replay", "words"), "no batch is completed yet"),
        (("bisect", "words", quarantined[1].isoformat(), "--output", "nope"), "has no output 'nope'"),
    ):
        answer = forebay("batches", *arguments)
        assert (answer.exit_code, said in answer.output) == (1, True), answer.output


def test_the_commands_of_the_pages_run(system: System, tmp_path: Path, quarantined: tuple[Pipeline, datetime]) -> None:
    pipeline, first = quarantined
    system.receive(["poison"])
    second = system.allocate(2)
    with pytest.raises(Exception, match="bad word"):
        system.run(pipeline, second, 1)
    ran = commands("runbooks/batch-failed.md", first, second)
    assert [" ".join(words[:2]) for words in ran] == [
        *("batches show", "batches bisect", "blocks records"),
        *("batches replay", "batches replay", "batches discard"),
    ]
    for words in ran:
        if words[1] == "replay":
            (tmp_path / "mended").touch()
        answer = forebay(*words)
        assert answer.exit_code == (1 if words[1] == "bisect" else 0), answer.output
        if words[1] == "bisect":
            assert "lines/1 block 5: 2 records, segment " in answer.stdout
            assert "forebay blocks records lines/1 5" in answer.stdout
    assert system.state(first)[0] is BatchState.COMPLETED
    assert system.state(second)[0] is BatchState.DISCARDED
    system.receive(["later"])
    third = system.allocate(3)
    system.run(pipeline, third, 1)
    # Those of an output with a state have a test of their own (test_state_forward.py).
    of_page = commands("how-to/replay.md", first, third)
    ran = [words for words in of_page if words[0] == "batches" and "--forward" not in words]
    assert len(ran) == 6
    for words in ran:
        answer = forebay(*words, "--json")
        assert answer.exit_code == 0, answer.output
        replayed = [row["batch_time"] for row in json.loads(answer.stdout)["batches"]]
        expected = [first, third] if "--to" in words else [first] if first.isoformat() in words else [third]
        assert replayed == [time.isoformat() for time in expected]
    assert system.published() == ["a", "b", "c", "d", "e", "later", "poison"]
