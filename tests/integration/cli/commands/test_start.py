"""Test what a start of `forebay up` does with a module that is not the one that was applied: no process runs."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Literal

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from forebay import ConsoleSink, ParquetSink, Pipeline, Stream
from forebay.cli.commands.up import apply_at_start
from forebay.cli.main import app
from forebay.cli.terminal.failures import CommandError
from forebay.sources import SocketText
from orchestration.declarations.apply import apply, is_applied
from orchestration.declarations.questions import Decided
from tests.support.driver_log.log import NOON, Log
from tracker_store.batches.pipelines import get_pipeline, list_pipelines, list_streams, remove_pipeline
from tracker_store.batches.received_block_tracker import ReceivedBlockTracker, batch_times
from tracker_store.batches.streams import remove_stream
from tracker_store.connection.engine import connect
from tracker_store.receivers.receivers import placements

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from orchestration.declarations.sink import Sink


def declare(
    stream: str = "clicks",
    renamed_from: str | None = None,
    *,
    name: str = "words",
    sink: Sink | None = None,
    start: Literal["earliest", "latest"] = "earliest",
) -> Pipeline:
    pipeline = Pipeline(name, interval="10s", start=start)
    read = Stream(stream, SocketText(host="127.0.0.1", port=9999), renamed_from=renamed_from)
    pipeline.output(inputs=[read], sink=sink or ConsoleSink(), name="counts")(lambda frame: frame)
    return pipeline


def receive(connection: sa.Connection) -> None:
    row = get_pipeline(connection, "words")
    [receiver] = [placed for placed in placements(connection) if placed.stream_name == "clicks"]
    Log(connection, row.stream_ids[0], row.pipeline_id, [receiver.receiver_id]).add_at(receiver.receiver_id, NOON)


def names(connection: sa.Connection) -> list[str]:
    return sorted(row.name for row in list_streams(connection))


def test_a_start_asks_whether_a_stream_is_renamed(connection: sa.Connection) -> None:
    said: list[str] = []
    apply_at_start(connection, [declare()], said.append)
    with pytest.raises(CommandError, match=r"Nothing was started. Is clix the stream clicks .*up --stop clicks`"):
        apply_at_start(connection, [declare("clix")], said.append)
    assert is_applied(connection, declare())
    assert said == []
    changes, _ = apply_at_start(connection, [declare("clix")], said.append, decided=Decided(stop=["clicks"]))
    assert [(change.name, change.action) for change in changes if change.kind == "stream"] == [
        ("clix", "add"),
        ("clicks", "stop"),
    ]
    assert names(connection) == ["clicks", "clix"]
    apply_at_start(connection, [declare("clix", "clicks")], said.append)
    [late] = said
    assert "both streams exist" in late


def test_a_start_renames_a_stream_with_records_that_wait_and_refuses_to_strand_them(connection: sa.Connection) -> None:
    apply(connection, [declare()])
    receive(connection)
    said: list[str] = []
    refused = (
        r"Nothing was started. pipeline .* 10 records wait .*renamed_from='clicks'.* start with the code as it was"
    )
    with pytest.raises(CommandError, match=refused):
        apply_at_start(connection, [declare("clix")], said.append, decided=Decided(stop=["clicks"]))
    with pytest.raises(CommandError, match=refused):
        apply_at_start(connection, [declare("clix", "clikcs")], said.append, decided=Decided(stop=["click"]))
    assert said[0].endswith("did you mean clicks?")
    assert said[1:] == ["--stop click: the driver log has no such stream; did you mean clicks?"]
    assert is_applied(connection, declare())
    apply_at_start(connection, [declare("clix", "clicks")], said.append)
    assert names(connection) == ["clix"]


def test_a_stream_that_was_renamed_too_late_can_still_be_renamed_as_the_hint_says(connection: sa.Connection) -> None:
    apply(connection, [declare()])
    [first] = placements(connection)
    apply_at_start(connection, [declare("clix")], lambda _: None, decided=Decided(stop=["clicks"]))
    apply_at_start(connection, [declare()], lambda _: None)
    remove_stream(connection, "clix", with_waiting=False)
    apply_at_start(connection, [declare("clix", "clicks")], lambda _: None)
    assert names(connection) == ["clix"]
    assert [row.receiver_id for row in placements(connection)] == [first.receiver_id]


def process(connection: sa.Connection) -> None:
    """Let a batch of `words` take what it has received."""
    row = get_pipeline(connection, "words")
    due = batch_times(connection, row.pipeline_id).newest
    connection.execute(sa.text("UPDATE forebay.pipelines SET last_batch_time = :t"), {"t": due - timedelta(seconds=10)})
    ReceivedBlockTracker(connection, row.pipeline_id).allocate_blocks_to_batch(due)


def remove(connection: sa.Connection) -> None:
    connection.execute(sa.text("UPDATE forebay.pipelines SET state = 'STOPPED'"))
    remove_pipeline(connection, "words")


def start(connection: sa.Connection, *pipelines: Pipeline, again: Sequence[str] = ()) -> None:
    apply_at_start(connection, pipelines, lambda _: None, decided=Decided(again=again))


@pytest.mark.parametrize("renamed", [False, True], ids=["same stream", "renamed stream"])
def test_kept_records_come_out_at_one_place_twice_only_if_a_person_says_so(
    connection: sa.Connection, renamed: bool
) -> None:
    stream: tuple[str, str | None] = ("clix", "clicks") if renamed else ("clicks", None)
    apply(connection, [declare(sink=ParquetSink("/out"))])
    receive(connection)
    process(connection)
    remove(connection)
    for name, path in (("terms", "/out"), ("words", "/out"), ("terms", "/out/in")):
        asked = f"Pipeline '{name}' is new, and begins with the 10 kept records of clicks. Pipeline 'words' .removed. "
        with pytest.raises(CommandError, match=f"{asked}.*`forebay up --again {name}`"):
            start(connection, declare(*stream, name=name, sink=ParquetSink(path)))
    assert list_pipelines(connection) == []
    start(connection, declare(*stream, name="terms", sink=ParquetSink("/out/in")), again=["terms"])
    start(connection, declare(stream[0], name="elsewhere", sink=ParquetSink("/other")))
    start(connection, declare(stream[0], name="nowhere"))
    start(connection, declare(stream[0], name="later", sink=ParquetSink("/out/later"), start="latest"))
    assert [row.name for row in list_pipelines(connection)] == ["elsewhere", "later", "nowhere", "terms"]


def test_apply_asks_the_same_and_takes_the_answer(
    engine: sa.Engine, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    monkeypatch.setenv("FOREBAY_HOME", str(tmp_path / "home"))
    module = tmp_path / "shop_again.py"
    module.write_text(
        "from forebay import ParquetSink, Pipeline, Stream\n"
        "from forebay.sources import SocketText\n"
        "clicks = Stream('clicks', SocketText(host='127.0.0.1', port=9999))\n"
        "pipeline = Pipeline('terms', interval='10s')\n"
        f"pipeline.output(inputs=[clicks], sink=ParquetSink({str(tmp_path)!r}), name='counts')(lambda frame: frame)\n"
    )
    with connect(engine) as connection:
        apply(connection, [declare(sink=ParquetSink(str(tmp_path)))])
        receive(connection)
        process(connection)
        remove(connection)
        for more in ([], ["--dry-run"], ["--again", "term"]):
            asked = CliRunner().invoke(app, ["apply", str(module), *more], env={"COLUMNS": "500"})
            assert asked.exit_code == 1, asked.output
            assert (
                f"Nothing was written. {'--again term: did you mean terms? ' if more[1:] else ''}Pipel" in asked.output
            )
            assert f"`forebay apply {module} --again terms`" in asked.output
        assert list_pipelines(connection) == []
        done = CliRunner().invoke(app, ["apply", str(module), "--again", "terms"])
        assert (done.exit_code, "Applied." in done.output) == (0, True), done.output
        assert [row.name for row in list_pipelines(connection)] == ["terms"]


def test_all_questions_are_asked_at_once_with_all_answers(connection: sa.Connection) -> None:
    apply(connection, [declare(sink=ParquetSink("/out")), declare("more", name="others")])
    receive(connection)
    process(connection)
    remove(connection)
    new = [declare(name=name, sink=ParquetSink(f"/out/{name}")) for name in ("a", "b")]
    changed = [declare("less", name="others"), *new]
    with pytest.raises(CommandError) as asked:
        start(connection, *changed, again=["a", "bb"])
    answers = "`forebay up --stop more --again a --again b`"
    assert "--again bb: did you mean b?" in str(asked.value)
    assert f"{answers} stops the one" in str(asked.value)
    assert str(asked.value).endswith(f"{answers}.")
    assert "Pipeline 'a'" not in str(asked.value)
    apply_at_start(connection, changed, lambda _: None, decided=Decided(["more"], ["a", "b"]))


def test_a_place_that_moves_from_one_pipeline_to_a_new_one_is_asked_about(connection: sa.Connection) -> None:
    apply(connection, [declare(sink=ParquetSink("/out"))])
    receive(connection)
    process(connection)
    connection.execute(sa.text("UPDATE forebay.batches SET state = 'COMPLETED', completed_at = clock_timestamp()"))
    with pytest.raises(CommandError, match=r"Pipeline 'terms' is new, .* Pipeline 'words' wrote results"):
        start(connection, declare(sink=ParquetSink("/moved")), declare(name="terms", sink=ParquetSink("/out")))


@pytest.mark.parametrize("is_read", [False, True], ids=["it read nothing", "what it read is not kept"])
def test_nothing_is_asked_of_a_removed_pipeline_without_kept_records(connection: sa.Connection, is_read: bool) -> None:
    apply(connection, [declare(sink=ParquetSink("/out"))])
    receive(connection)
    if is_read:
        process(connection)
        connection.execute(sa.text("UPDATE forebay.receivers SET low_mark = next_sequence - 1 FROM forebay.cursors"))
    remove(connection)
    start(connection, declare(name="terms", sink=ParquetSink("/out")))


def test_a_running_pipeline_that_the_module_has_not_is_said(connection: sa.Connection) -> None:
    apply(connection, [declare(sink=ParquetSink("/out"))])
    said: list[str] = []
    apply_at_start(connection, [declare(name="terms", sink=ParquetSink("/other"))], said.append)
    assert said == [], "some code may have it: a batch of it was decided a moment ago"
    connection.execute(sa.text("UPDATE forebay.pipelines SET last_batch_time = last_batch_time - interval '1 h'"))
    apply_at_start(connection, [declare(name="terms", sink=ParquetSink("/other"))], said.append)
    [line] = said
    assert line.startswith("The driver log also has words, which this module does not declare.")
    assert line.endswith("`forebay stop --pipeline words --timeout 0s`, then `forebay pipelines remove words`.")
    connection.execute(sa.text("UPDATE forebay.pipelines SET state = 'STOPPED' WHERE name = 'words'"))
    said.clear()
    apply_at_start(connection, [declare(name="terms", sink=ParquetSink("/other"))], said.append)
    assert said == []
