"""Test what a start of `forebay up` does with a module that is not the one that was applied: no process runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pytest
import sqlalchemy as sa

from forebay import ConsoleSink, ParquetSink, Pipeline, Stream
from forebay.cli.commands.up import apply_at_start
from forebay.cli.terminal.failures import CommandError
from forebay.sources import SocketText
from orchestration.declarations.apply import Decided, apply, is_applied
from tests.support.driver_log.log import NOON, Log
from tracker_store.batches.pipelines import get_pipeline, list_pipelines, list_streams, remove_pipeline
from tracker_store.batches.streams import remove_stream
from tracker_store.receivers.receivers import placements

if TYPE_CHECKING:
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
    [receiver] = placements(connection)
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
    changes = apply_at_start(connection, [declare("clix")], said.append, decided=Decided(stop=["clicks"]))
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
    refused = r"Nothing was started: .* 10 records wait .*renamed_from='clicks'.* start with the code as it was before"
    with pytest.raises(CommandError, match=refused):
        apply_at_start(connection, [declare("clix")], said.append, decided=Decided(stop=["clicks"]))
    with pytest.raises(CommandError, match=refused):
        apply_at_start(connection, [declare("clix", "clikcs")], said.append)
    [mistyped] = said
    assert mistyped.endswith("did you mean clicks?")
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


@pytest.mark.parametrize("renamed", [False, True], ids=["same stream", "renamed stream"])
def test_kept_records_come_out_at_one_place_twice_only_if_a_person_says_so(
    connection: sa.Connection, renamed: bool
) -> None:
    stream: tuple[str, str | None] = ("clix", "clicks") if renamed else ("clicks", None)

    def start(pipeline: Pipeline, *again: str) -> None:
        apply_at_start(connection, [pipeline], lambda _: None, decided=Decided(again=again))

    apply(connection, [declare(sink=ParquetSink("/out"))])
    receive(connection)
    connection.execute(sa.text("UPDATE forebay.pipelines SET state = 'STOPPED'"))
    remove_pipeline(connection, "words")
    for name, path in (("terms", "/out"), ("words", "/out"), ("terms", "/out/in")):
        refused = f"pipeline '{name}' is new, and begins with the 10 records .* of clicks.* 'words' .*--again {name}`"
        with pytest.raises(CommandError, match=refused):
            start(declare(*stream, name=name, sink=ParquetSink(path)))
    assert list_pipelines(connection) == []
    start(declare(*stream, name="terms", sink=ParquetSink("/out/in")), "terms")
    start(declare(stream[0], name="elsewhere", sink=ParquetSink("/other")))
    start(declare(stream[0], name="later", sink=ParquetSink("/out/later"), start="latest"))
    assert [row.name for row in list_pipelines(connection)] == ["elsewhere", "later", "terms"]


def test_nothing_is_asked_of_a_place_without_kept_records(connection: sa.Connection) -> None:
    apply(connection, [declare(sink=ParquetSink("/out"))])
    connection.execute(sa.text("UPDATE forebay.pipelines SET state = 'STOPPED'"))
    remove_pipeline(connection, "words")
    apply_at_start(connection, [declare(name="terms", sink=ParquetSink("/out"))], lambda _: None)


def test_a_running_pipeline_that_the_module_has_not_is_said(connection: sa.Connection) -> None:
    apply(connection, [declare(sink=ParquetSink("/out"))])
    said: list[str] = []
    apply_at_start(connection, [declare(name="terms", sink=ParquetSink("/other"))], said.append)
    [line] = said
    assert line.startswith("The driver log also has words, which this module has not.")
    assert line.endswith("`forebay stop --pipeline words`, then `forebay pipelines remove words`.")
    connection.execute(sa.text("UPDATE forebay.pipelines SET state = 'STOPPED' WHERE name = 'words'"))
    said.clear()
    apply_at_start(connection, [declare(name="terms", sink=ParquetSink("/other"))], said.append)
    assert said == []
