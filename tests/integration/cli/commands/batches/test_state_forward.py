"""Test the commands of an output with a state on Spark: show and export what is stored, run it again, undo that."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from forebay.cli.main import app
from orchestration.declarations.apply import apply
from orchestration.declarations.modules import load_pipelines

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.spark.batch_rig import System

pytestmark = pytest.mark.spark

PAGE = Path(__file__).parents[5] / "docs" / "how-to" / "replay.md"

# Counts each word twice while the file `twice` exists, and fails for one while the file `broken` does.
MODULE = """
from pathlib import Path

from forebay import ParquetSink, Pipeline, State, Stream
from forebay.sources import SocketText

HERE = Path(__file__).parent
lines = Stream("lines", SocketText(host="127.0.0.1", port=9999))
words = Pipeline("words", interval="1h")
STATE = State("word STRING", "n BIGINT", keys=lambda lines: lines.selectExpr("value AS word"), buckets=4)


@words.output(inputs=[lines], state=STATE, sink=ParquetSink(HERE / "output"), name="totals")
def totals(lines, state):
    if (HERE / "broken").exists():
        lines = lines.selectExpr("CASE WHEN value = 'c' THEN raise_error('bad word') ELSE value END AS value")
    if (HERE / "twice").exists():
        lines = lines.union(lines)
    new = lines.groupBy("value").count().withColumnRenamed("value", "word")
    changed = new.join(state, "word", "left").selectExpr("word", "coalesce(n, 0) + count AS n")
    return changed.selectExpr("concat(word, ' ', n) AS value"), changed
"""


def forebay(*arguments: str, code: int = 0) -> Any:  # noqa: ANN401  JSON
    answer = CliRunner().invoke(app, [*arguments, "--json"])
    assert answer.exit_code == code, answer.output
    return json.loads(answer.stdout)


def typed() -> list[list[str]]:
    """Return the page's commands of a state."""
    found = re.findall(r"^\$ forebay (.*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return [shlex.split(line) for line in found if "--forward" in line or line.startswith("state")]


def test_a_state_is_shown_exported_replayed_forward_stopped_resumed_and_undone(
    system: System, tmp_path: Path, declare: Callable[[str], None]
) -> None:
    declare(MODULE)
    [pipeline] = load_pipelines(str(tmp_path / "words_module.py"))
    apply(system.connection, [pipeline])
    times = []
    for hour, line in ((1, ["a"]), (2, ["a", "b"]), (3, ["b", "c"])):
        system.receive(line)
        times.append(system.allocate(hour))
        system.run(pipeline, times[-1], 1)
    first, second, third = times

    def shown(word: str, *options: str, code: int = 0) -> Any:  # noqa: ANN401  JSON
        return forebay("state", "show", "words", "totals", word, *options, code=code)

    def value(word: str, *options: str, code: int = 0) -> Any:  # noqa: ANN401  JSON
        return shown(word, *options, code=code)["value"]

    assert value("a") == {"word": "a", "n": 2, "is_expired": False}
    assert value("b", "--at", second.isoformat())["n"] == 1
    assert value("b", "--at", first.isoformat(), code=1) is None
    assert shown("a")["changed"] == {"batch_time": second.isoformat(), "attempt": 1}
    assert shown("a", "--at", first.isoformat())["changed"] == {"batch_time": first.isoformat(), "attempt": 1}
    assert shown("b", "--at", first.isoformat(), code=1)["changed"] is None
    said = CliRunner().invoke(app, ["state", "show", "words", "totals", "b"], env={"COLUMNS": "200"}).output
    assert f"Batch {third.isoformat()}, attempt 1, changed the key last." in said
    refused = CliRunner().invoke(app, ["state", "show", "words", "totals", "a", "b"])
    assert (refused.exit_code, "the key has 1 column(s), word, and 2 are given" in refused.output) == (1, True)
    file = tmp_path / "state.parquet"
    assert forebay("state", "export", "words", "totals", "--to", str(file))["keys"] == 3
    assert {
        row["word"]: (row["n"], row["_changed_at"], row["_changed_by"]) for row in pq.read_table(file).to_pylist()
    } == {
        "a": (2, second, 1),
        "b": (2, third, 1),
        "c": (1, third, 1),
    }
    again = CliRunner().invoke(app, ["state", "export", "words", "totals", "--to", str(file)])
    assert (again.exit_code, "give the name of a new file" in again.output) == (1, True)

    def at_second(command: list[str]) -> list[str]:
        return [second.isoformat() if word.startswith("2026-") else word for word in command]

    replay, state, resume, undo, rebuild = typed()
    (tmp_path / "twice").touch()
    (tmp_path / "broken").touch()
    stopped = forebay(*at_second(replay), code=1)
    assert (stopped["state"], [row["outcome"] for row in stopped["batches"]]) == ("STOPPED", ["replayed", "failed"])
    assert "bad word" in stopped["batches"][1]["detail"]
    [row] = forebay(*state)["states"]
    assert (row["replay_state"], row["replayed_to"]) == ("STOPPED", second.isoformat())
    assert value("a")["n"] == 2, "the state in force is still the old one"

    (tmp_path / "broken").unlink()
    resumed = forebay(*resume)
    assert (resumed["state"], [row["batch_time"] for row in resumed["batches"]]) == ("COMPLETED", [third.isoformat()])
    assert (value("a")["n"], value("b")["n"], value("c")["n"]) == (3, 4, 2)
    assert shown("a")["changed"] == {"batch_time": second.isoformat(), "attempt": 2}

    (tmp_path / "twice").unlink()
    undone = forebay(*undo)
    assert (undone["state"], [row["outcome"] for row in undone["batches"]]) == ("UNDONE", ["replayed", "replayed"])
    assert (value("a")["n"], value("b")["n"], value("c")["n"]) == (2, 2, 1)
    assert system.published() == ["a 1", "a 2", "b 1", "b 2", "c 1"]

    assert forebay(*at_second(rebuild))["state"] == "COMPLETED"
    assert (value("a")["n"], value("b")["n"], value("c")["n"]) == (1, 2, 1)
    assert system.published() == ["a 1", "a 1", "b 1", "b 2", "c 1"]
