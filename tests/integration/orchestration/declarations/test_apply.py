"""Test `apply`: what it shows, what it writes, what it refuses."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal

import pytest
import sqlalchemy as sa

from forebay import ConsoleSink, DeclarationError, DeltaSink, IcebergSink, ParquetSink, Pipeline, PostgresSink, Stream
from forebay.sources import Http, SocketText
from orchestration.declarations.apply import SENDERS_PATH, apply, difference, is_applied
from receiver_runtime.sources.fields.secret import Secret
from tests.support.driver_log.allocated_ranges import ranges_of_batch
from tests.support.driver_log.log import NOON, Log
from tracker_store.batches.pipelines import get_pipeline, list_pipelines, list_streams, waiting_records
from tracker_store.batches.received_block_tracker import ReceivedBlockTracker, batch_times
from tracker_store.batches.streams import UnreadStream, unread_streams
from tracker_store.connection.errors import DriverLogUnavailableError, SharedPlaceError, StrandingChangeError
from tracker_store.receivers.receivers import placements
from tracker_store.schema.states import ReceiverState

if TYPE_CHECKING:
    from orchestration.declarations.sink import Sink


def declare(
    *,
    receivers: int = 1,
    interval: str = "10s",
    port: int = 9999,
    stream: str = "lines",
    renamed_from: str | None = None,
) -> Pipeline:
    lines = Stream(stream, SocketText(host="127.0.0.1", port=port), receivers=receivers, renamed_from=renamed_from)
    pipeline = Pipeline("words", interval=interval)
    pipeline.output(inputs=[lines], sink=ParquetSink("/out"), name="counts")(lambda frame: frame)
    return pipeline


def test_a_new_declaration_is_written_once(connection: sa.Connection) -> None:
    changes = apply(connection, [declare(receivers=2)])
    assert [(change.kind, change.name, change.action) for change in changes] == [
        ("stream", "lines", "add"),
        ("pipeline", "words", "add"),
    ]
    assert len(placements(connection)) == 2
    assert apply(connection, [declare(receivers=2)]) == []
    assert (list_streams(connection)[0].version, get_pipeline(connection, "words").version) == (1, 1)


def test_a_change_is_shown_key_by_key_and_raises_the_version(connection: sa.Connection) -> None:
    apply(connection, [declare()])
    [change] = difference(connection, [declare(interval="5s")])
    assert change.details == (("interval_ms", 10_000, 5_000),)
    assert not is_applied(connection, declare(interval="5s"))
    apply(connection, [declare(interval="5s")])
    assert get_pipeline(connection, "words").version == 2
    assert is_applied(connection, declare(interval="5s"))


def other_output(pipeline: Pipeline, sink: Sink) -> Pipeline:
    [counts] = pipeline.outputs.values()
    pipeline.output(inputs=counts.inputs, sink=sink, name="others")(lambda frame: frame)
    return pipeline


def pipeline_with_another_name(sink: Sink) -> Pipeline:
    pipeline = Pipeline("letters", interval="10s")
    stream = Stream("lines", SocketText(host="127.0.0.1", port=9999))
    pipeline.output(inputs=[stream], sink=sink, name="others")(lambda frame: frame)
    return pipeline


@pytest.mark.parametrize("sink", [ParquetSink("/out"), ParquetSink("/out", compact=True), DeltaSink("/out")])
def test_two_outputs_may_not_write_to_one_place(connection: sa.Connection, sink: Sink) -> None:
    """Check this because each output would replace the other's files, batch by batch."""
    says = r"output 'others' of pipeline 'words' writes to '/out', as output 'counts' of pipeline 'words' does"
    with pytest.raises(SharedPlaceError, match=says):
        apply(connection, [other_output(declare(), sink)])
    assert list_streams(connection) == [], "nothing is written"
    apply(connection, [declare()])
    says = r"output 'others' of pipeline 'letters' writes to '/out'.*stop --pipeline words`.*pipelines remove words"
    with pytest.raises(SharedPlaceError, match=says):
        apply(connection, [pipeline_with_another_name(sink)])
    apply(connection, [other_output(declare(), ParquetSink("/others"))])
    apply(connection, [pipeline_with_another_name(ParquetSink("/letters"))])
    apply(connection, [declare(), pipeline_with_another_name(ParquetSink("/others"))])


POSTGRES = "postgresql://me@db.example/shop"
CATALOG: dict[str, str | Secret] = {"type": "sql", "uri": Secret("env:CATALOG_URI"), "warehouse": "file:///data"}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        # A retry of either deletes the other's rows of that batch time.
        (IcebergSink("shop.counts", catalog=CATALOG), IcebergSink("shop.counts", catalog=CATALOG)),
        (DeltaSink("/data/counts"), DeltaSink("/data/../data/counts/")),
        # Readers of the one get the rows of the other too.
        (ParquetSink("/data/counts"), DeltaSink("/data/counts/others")),
        (ParquetSink("s3://out/counts/others?region=a"), ParquetSink("s3://out/counts")),
        # The newest batch of either output empties the table.
        (PostgresSink(POSTGRES, "counts", mode="overwrite"), PostgresSink(POSTGRES, "counts", mode="overwrite")),
        # The sink itself refuses it at the first batch, which would then be given up.
        (PostgresSink(POSTGRES, "counts"), PostgresSink(POSTGRES, "public.counts", mode="merge", key="word")),
        (PostgresSink(POSTGRES, "counts"), PostgresSink("postgresql://you@db.example:5432/shop", "counts")),
        (PostgresSink("env:SHOP", "counts"), PostgresSink("env:SHOP", "counts")),
        (ParquetSink("s3://bucket/out"), ParquetSink("s3://bucket/out/?region=eu-north-1")),
        (ParquetSink("/one"), DeltaSink("/one")),
    ],
)
def test_a_place_is_recognised_however_it_is_written(connection: sa.Connection, one: Sink, other: Sink) -> None:
    with pytest.raises(SharedPlaceError, match=r"output 'others' of pipeline 'letters' .*of its own"):
        apply(connection, [other_output(declare(), one), pipeline_with_another_name(other)])
    assert list_streams(connection) == [], "nothing is written"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (IcebergSink("shop.counts", catalog=CATALOG), IcebergSink("shop.others", catalog=CATALOG)),
        (
            IcebergSink("shop.counts", catalog=CATALOG),
            IcebergSink("shop.counts", catalog=CATALOG | {"uri": Secret("env:OTHER_URI")}),
        ),
        (ParquetSink("/data/counts"), ParquetSink("/data/counts2")),
        (ParquetSink("s3://out/counts"), ParquetSink("s3://out/counts2")),
        (PostgresSink(POSTGRES, "counts"), PostgresSink(POSTGRES, "others.counts")),
        (PostgresSink(POSTGRES, "counts"), PostgresSink("postgresql://me@db.example/house", "counts")),
        (PostgresSink("env:SHOP", "counts"), PostgresSink("env:HOUSE", "counts")),
        (ConsoleSink(), ConsoleSink()),
    ],
)
def test_different_places_are_not_taken_for_the_same(connection: sa.Connection, one: Sink, other: Sink) -> None:
    assert apply(connection, [other_output(declare(), one), pipeline_with_another_name(other)])


def test_showing_the_difference_writes_nothing(connection: sa.Connection) -> None:
    assert len(difference(connection, [declare()])) == 2
    assert list_streams(connection) == []


def test_a_changed_stream_moves_its_receivers_to_a_new_assignment(connection: sa.Connection) -> None:
    apply(connection, [declare()])
    [before] = placements(connection)
    apply(connection, [declare(port=9998)])
    [after] = placements(connection)
    assert (after.state, after.assignment) == (ReceiverState.INACTIVE, before.assignment + 1)


def receive(connection: sa.Connection, time: datetime) -> None:
    """Add a block of the first receiver at `time`."""
    pipeline = get_pipeline(connection, "words")
    receivers = [placement.receiver_id for placement in placements(connection)]
    Log(connection, pipeline.stream_ids[0], pipeline.pipeline_id, receivers).add_at(receivers[0], time)


def test_a_stream_with_waiting_blocks_may_not_leave_its_pipeline(connection: sa.Connection) -> None:
    apply(connection, [declare()])
    receive(connection, NOON)
    with pytest.raises(
        StrandingChangeError, match=r"no longer reads lines, of which 10 records wait.*renamed_from='lines'"
    ):
        apply(connection, [declare(stream="others", interval="5s")])
    assert is_applied(connection, declare())
    assert [stream.name for stream in list_streams(connection)] == ["lines"]


def test_a_stream_with_blocks_in_an_unfinished_batch_may_not_leave(connection: sa.Connection) -> None:
    """Check this because the batch would run with code that ignores the stream, and complete without its blocks."""
    apply(connection, [declare()])
    receive(connection, NOON)
    row = get_pipeline(connection, "words")
    due = batch_times(connection, row.pipeline_id).newest
    connection.execute(sa.text("UPDATE forebay.pipelines SET last_batch_time = :t"), {"t": due - timedelta(seconds=10)})
    ReceivedBlockTracker(connection, row.pipeline_id).allocate_blocks_to_batch(due)
    with pytest.raises(StrandingChangeError, match=r"lines, of which 10 records are in batches of it that are not fin"):
        apply(connection, [declare(stream="others")])
    connection.execute(sa.text("UPDATE forebay.batches SET state = 'COMPLETED', completed_at = clock_timestamp()"))
    apply(connection, [declare(stream="others")])


def test_a_stream_without_waiting_blocks_may_leave_and_another_may_come(connection: sa.Connection) -> None:
    apply(connection, [declare()])
    apply(connection, [declare(stream="others")])
    others = next(stream for stream in list_streams(connection) if stream.name == "others")
    assert get_pipeline(connection, "words").stream_ids == (others.stream_id,)


def test_a_renamed_stream_keeps_its_receivers_and_what_waits(connection: sa.Connection) -> None:
    apply(connection, [declare()])
    receive(connection, NOON)
    [before], [stream] = placements(connection), list_streams(connection)
    renamed = declare(stream="words_in", renamed_from="lines")
    changes = apply(connection, [renamed])
    assert [(change.kind, change.name, change.action) for change in changes] == [
        ("stream", "words_in", "rename"),
        ("pipeline", "words", "change"),
    ]
    assert changes[0].details == (("name", "lines", "words_in"),)
    assert [(row.stream_id, row.name) for row in list_streams(connection)] == [(stream.stream_id, "words_in")]
    # Its name is in the path of its address: the receiver starts again, by a hand-over.
    [after] = placements(connection)
    assert (after.receiver_id, after.assignment) == (before.receiver_id, before.assignment + 1)
    assert waiting_records(connection, get_pipeline(connection, "words").pipeline_id, stream.stream_id) == 10
    assert apply(connection, [renamed]) == []
    assert apply(connection, [declare(stream="words_in")]) == [], "it may be left out afterwards"


def test_a_rename_shows_the_path_of_senders_urls_where_it_has_the_name(connection: sa.Connection) -> None:
    def of_http(stream: str, renamed_from: str | None = None) -> Pipeline:
        pipeline = Pipeline("words", interval="10s")
        lines = Stream(stream, Http(listen="127.0.0.1:8080"), renamed_from=renamed_from)
        pipeline.output(inputs=[lines], sink=ParquetSink("/out"), name="counts")(lambda frame: frame)
        return pipeline

    apply(connection, [of_http("lines")])
    [rename, _] = difference(connection, [of_http("words_in", renamed_from="lines")])
    assert rename.details == (("name", "lines", "words_in"), (SENDERS_PATH, "/v1/lines", "/v1/words_in"))
    [*_, stop] = difference(connection, [of_http("others")])
    assert (stop.action, stop.details[-1]) == ("stop", ("listen", "127.0.0.1:8080", None))


def test_a_rename_that_was_interrupted_is_applied_again(connection: sa.Connection) -> None:
    """Check a process that ends between the stream's row and the pipeline's: each is a transaction of its own."""
    apply(connection, [declare()])
    receive(connection, NOON)
    connection.execute(sa.text("UPDATE forebay.streams SET name = 'words_in'"))
    for renamed_from in ("lines", None):
        apply(connection, [declare(stream="words_in", renamed_from=renamed_from)])
        assert is_applied(connection, declare(stream="words_in"))
    [stream] = list_streams(connection)
    assert waiting_records(connection, get_pipeline(connection, "words").pipeline_id, stream.stream_id) == 10


def test_a_stream_is_not_renamed_while_its_name_is_read(connection: sa.Connection) -> None:
    other = Pipeline("other", interval="10s")
    other.output(inputs=declare().streams, sink=ParquetSink("/out2"), name="counts")(lambda frame: frame)
    apply(connection, [declare(), other])
    renamed = declare(stream="words_in", renamed_from="lines")
    with pytest.raises(DeclarationError, match=r"pipeline 'other' reads it too.*forebay pipelines remove other"):
        apply(connection, [renamed])
    with pytest.raises(DeclarationError, match="lines is declared too: leave renamed_from out"):
        apply(connection, [renamed, other])
    assert [stream.name for stream in list_streams(connection)] == ["lines"]


def test_a_stream_that_nothing_reads_any_more_is_shown_with_what_it_still_gets(connection: sa.Connection) -> None:
    apply(connection, [declare()])
    [row], [placed] = list_streams(connection), placements(connection)
    stop, *_ = [change for change in difference(connection, [declare(stream="others")]) if change.action == "stop"]
    assert (stop.name, stop.details) == ("lines", (("receivers", 1, 0), ("records", 0, None)))
    apply(connection, [declare(stream="others")])
    assert unread_streams(connection) == []
    words = get_pipeline(connection, "words")
    Log(connection, row.stream_id, words.pipeline_id, [placed.receiver_id]).add_at(placed.receiver_id, NOON)
    assert unread_streams(connection) == [UnreadStream("lines", 10, timedelta(days=7))]
    apply(connection, [declare()])
    assert unread_streams(connection) == []


def test_fewer_receivers_strand_no_blocks_and_may_become_more_again(connection: sa.Connection) -> None:
    """Change N receivers to M: the removed ones stop under a new assignment; their blocks are allocated as usual."""
    apply(connection, [declare(receivers=2)])
    row = get_pipeline(connection, "words")
    [first, second] = [placement.receiver_id for placement in placements(connection)]
    Log(connection, row.stream_ids[0], row.pipeline_id, [first, second]).add_at(second, NOON)
    apply(connection, [declare(receivers=1)])
    assert [placement.receiver_id for placement in placements(connection)] == [first]
    tracker = ReceivedBlockTracker(connection, row.pipeline_id)
    due = batch_times(connection, row.pipeline_id).newest
    connection.execute(sa.text("UPDATE forebay.pipelines SET last_batch_time = :t"), {"t": due - timedelta(seconds=10)})
    tracker.allocate_blocks_to_batch(due)
    assert [(r.receiver_id, r.records) for r in ranges_of_batch(tracker, due)] == [(second, 10)]
    apply(connection, [declare(receivers=3)])
    again = placements(connection)
    assert [placement.ordinal for placement in again] == [1, 2, 3]
    assert again[1].receiver_id == second


@pytest.mark.parametrize(("start", "records"), [("earliest", 10), ("latest", 0)])
def test_a_new_pipeline_begins_with_the_earliest_block_or_after_the_latest(
    connection: sa.Connection, start: Literal["earliest", "latest"], records: int
) -> None:
    apply(connection, [declare()])
    receive(connection, NOON)
    lines = declare().streams[0]
    other = Pipeline("other", interval="10s", start=start)
    other.output(inputs=[lines], sink=ParquetSink("/out2"), name="counts")(lambda frame: frame)
    apply(connection, [other])
    row = get_pipeline(connection, "other")
    assert waiting_records(connection, row.pipeline_id, row.stream_ids[0]) == records


def test_a_pipeline_to_begin_at_the_latest_is_never_seen_without_its_cursors(connection: sa.Connection) -> None:
    """Check that a process that dies or is refused on the way leaves no pipeline that would begin at the earliest."""
    apply(connection, [declare()])
    receive(connection, NOON)
    lines = declare().streams[0]
    other = Pipeline("other", interval="10s", start="latest")
    other.output(inputs=[lines], sink=ParquetSink("/out2"), name="counts")(lambda frame: frame)
    connection.exec_driver_sql(
        "CREATE FUNCTION forebay.refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN RAISE EXCEPTION 'no room' USING ERRCODE = '53100'; END$$"
    )
    connection.exec_driver_sql(
        "CREATE TRIGGER refuse BEFORE INSERT ON forebay.cursors EXECUTE FUNCTION forebay.refuse()"
    )
    with pytest.raises(DriverLogUnavailableError, match="no room"):
        apply(connection, [other])
    assert [row.name for row in list_pipelines(connection)] == ["words"]
    connection.exec_driver_sql("DROP FUNCTION forebay.refuse() CASCADE")
    for _ in range(2):
        apply(connection, [other])
        row = get_pipeline(connection, "other")
        assert waiting_records(connection, row.pipeline_id, row.stream_ids[0]) == 0


def test_an_existing_pipeline_keeps_its_position_when_it_is_applied_again(connection: sa.Connection) -> None:
    def other(start: Literal["earliest", "latest"], interval: str) -> Pipeline:
        made = Pipeline("other", interval=interval, start=start)
        made.output(inputs=[declare().streams[0]], sink=ParquetSink("/out2"), name="counts")(lambda frame: frame)
        return made

    apply(connection, [declare(), other("earliest", "10s")])
    receive(connection, NOON)
    apply(connection, [other("latest", "20s")])
    row = get_pipeline(connection, "other")
    assert (row.version, row.interval) == (2, timedelta(seconds=20))
    assert waiting_records(connection, row.pipeline_id, row.stream_ids[0]) == 10


def test_retention_counts_the_longest_window(connection: sa.Connection) -> None:
    lines = Stream("lines", SocketText(host="127.0.0.1", port=9999))
    pipeline = Pipeline("words", interval="10s", retention="1m")
    window = lines.window("1h", slide="20s")
    pipeline.output(inputs=[window], sink=ParquetSink("/out"), name="counts")(lambda frame: frame)
    apply(connection, [pipeline])
    kept: timedelta = connection.execute(sa.text("SELECT retention FROM forebay.pipelines")).scalar_one()
    assert kept == timedelta(hours=1, seconds=20), "what left the window since its slide before counts too"


def test_a_new_pipeline_begins_with_the_next_boundary(connection: sa.Connection) -> None:
    apply(connection, [declare(interval="10s")])
    assert get_pipeline(connection, "words").last_batch_time.timestamp() % 10 == 0
