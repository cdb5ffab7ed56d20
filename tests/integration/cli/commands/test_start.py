"""Test what a start of `forebay up` does with a module that is not the one that was applied: no process runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from forebay import ConsoleSink, Pipeline, Stream
from forebay.cli.commands.up import apply_at_start
from forebay.cli.terminal.failures import CommandError
from forebay.sources import SocketText
from orchestration.declarations.apply import apply, is_applied
from tests.support.driver_log.log import NOON, Log
from tracker_store.batches.pipelines import get_pipeline, list_streams
from tracker_store.batches.streams import remove_stream
from tracker_store.receivers.receivers import placements

if TYPE_CHECKING:
    import sqlalchemy as sa


def declare(stream: str = "clicks", renamed_from: str | None = None) -> Pipeline:
    pipeline = Pipeline("words", interval="10s")
    read = Stream(stream, SocketText(host="127.0.0.1", port=9999), renamed_from=renamed_from)
    pipeline.output(inputs=[read], sink=ConsoleSink(), name="counts")(lambda frame: frame)
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
    changes = apply_at_start(connection, [declare("clix")], said.append, stop=["clicks"])
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
        apply_at_start(connection, [declare("clix")], said.append, stop=["clicks"])
    with pytest.raises(CommandError, match="Is clix the stream clicks"):
        apply_at_start(connection, [declare("clix", "clikcs")], said.append)
    [mistyped] = said
    assert mistyped.endswith("did you mean clicks?")
    assert is_applied(connection, declare())
    apply_at_start(connection, [declare("clix", "clicks")], said.append)
    assert names(connection) == ["clix"]


def test_a_stream_that_was_renamed_too_late_can_still_be_renamed_as_the_hint_says(connection: sa.Connection) -> None:
    apply(connection, [declare()])
    [first] = placements(connection)
    apply_at_start(connection, [declare("clix")], lambda _: None, stop=["clicks"])
    apply_at_start(connection, [declare()], lambda _: None)
    remove_stream(connection, "clix", with_waiting=False)
    apply_at_start(connection, [declare("clix", "clicks")], lambda _: None)
    assert names(connection) == ["clix"]
    assert [row.receiver_id for row in placements(connection)] == [first.receiver_id]
