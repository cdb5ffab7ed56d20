"""Test the status page on a real driver log: its figures, its bounds, and who may see it."""

from __future__ import annotations

import html
import re
import urllib.request
from typing import TYPE_CHECKING, cast

import pytest
import sqlalchemy as sa

from orchestration.status_page.problems import problems
from orchestration.status_page.shown import milliseconds
from orchestration.status_page.system_status import status_of
from orchestration.tracker.http.listen_address import ListenAddress
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.sources.records.json_records import Json
from tests.integration.orchestration.test_tracker_http import SECOND, ask, busy, log, serving, url
from tests.support.driver_log.declared_records import declare_records
from tests.support.driver_log.eventful_log import COMPLETED, make_eventful_log
from tests.support.driver_log.filled_log import Size, fill, reading
from tests.support.driver_log.log import INTERVAL, NOON
from tests.support.driver_log.stated_log import DECLARATION, OUTPUT, StatedLog, batch_time
from tests.support.driver_log.stored_letters import Letters
from tracker_store.batches.pipelines import apply_pipeline
from tracker_store.batches.state_replays import begin_state_replay
from tracker_store.blocks.stream_schemas import register_schema
from tracker_store.connection.engine import create_engine
from tracker_store.receivers.agents import list_agents
from tracker_store.receivers.processes import register_process
from tracker_store.receivers.receivers import report_event
from tracker_store.reports import status_page as store
from tracker_store.reports.listener_events import newest_events
from tracker_store.reports.status import batch_stats, pipeline_status, receiver_status, stream_lag
from tracker_store.schema.states import ProcessKind, ReceiverEventKind

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.driver_log.log import Log

__all__ = ["log", "url"]
PLANTED = "<script>alert('x')</script>"
WORDS = "/status/pipelines/words"


def text_of(page: str) -> str:
    """Return the text of a page as a person reads it, with single spaces."""
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", page)))


def test_figures_are_those_of_the_views(log: Log, url: str) -> None:
    busy(log)
    register_process(log.connection, kind=ProcessKind.AGENT, name="agent-7", host="node-7", pid=1, slots=12)
    [status] = pipeline_status(log.connection)
    stats = {row.batch_time: row for row in batch_stats(log.connection, limit=100)}
    overview = text_of(ask(url, "/status").text)
    assert f"{status.waiting_records:,}" in overview
    assert "agent-7 node-7 ACTIVE 0 12" in overview
    page = text_of(ask(url, WORDS).text)
    finished = [row for row in stats.values() if row.state in ("COMPLETED", "QUARANTINED")]
    assert f"Finished batches {len(finished)} " in page
    assert f"Records in them {sum(row.records for row in finished):,} " in page
    assert f"Open batches {status.unfinished_batches} {status.running_batches} running" in page
    # Batch 1 ran from 2 to 5 s after its time.
    assert f"2026-01-01 12:00:10 {stats[NOON + INTERVAL].records} 2.0 s 3.0 s 5.0 s 1 COMPLETED" in page
    [lag] = stream_lag(log.connection)
    assert f"Waiting records {lag.waiting_records} " in page


def test_a_batch_shows_its_blocks_attempts_and_outputs(log: Log, url: str) -> None:
    busy(log)
    page = text_of(ask(url, f"{WORDS}/batches/{milliseconds(NOON + 2 * INTERVAL)}").text)
    assert "QUARANTINED" in page
    assert "boom" in page
    assert "counts COMMITTED 1 1" in page
    assert "kept FAILED" in page
    assert "no number: 'x'" in page
    blocks = log.connection.execute(
        sa.text("SELECT sequence FROM forebay.batch_blocks WHERE batch_time = :time"), {"time": NOON + 2 * INTERVAL}
    ).scalars()
    for sequence in blocks:
        assert re.search(rf"lines \d+ {sequence} 2026-01-01", page)


def test_a_batch_shows_the_source_positions_that_it_read(
    engine: sa.Engine, connection: sa.Connection, home: Path
) -> None:
    make_eventful_log(connection)
    rows = connection.execute(
        sa.text(
            "SELECT stream, source, partition, generation, from_offset, to_offset, positions, lost "
            "FROM forebay.batch_input_metadata WHERE batch_time = :time"
        ),
        {"time": COMPLETED},
    ).all()
    assert rows
    with serving(engine, home) as url:
        page = text_of(ask(url, f"{WORDS}/batches/{milliseconds(COMPLETED)}").text)
    for row in rows:
        assert " ".join(f"{value:,}" if isinstance(value, int) else value for value in row) in page


def test_a_stream_shows_its_receivers_and_what_they_said_as_text(log: Log, url: str) -> None:
    busy(log)
    one, _ = log.receiver_ids
    report_event(log.connection, receiver_id=one, epoch=1, kind=ReceiverEventKind.ERROR, message=f"{PLANTED} refused")
    answer = ask(url, "/status/streams/lines")
    assert PLANTED not in answer.text
    assert f"{PLANTED} refused" in text_of(answer.text)
    for row in receiver_status(log.connection):
        assert f"{row.ordinal} {row.state}" in text_of(answer.text)
    assert PLANTED not in ask(url, "/status/events").text
    assert f"{PLANTED} refused" in text_of(ask(url, "/status/events").text)
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert "None." in text_of(ask(url, "/status/streams/lines?state=FAILED").text)


def test_a_typed_stream_shows_its_columns_and_its_dead_letters(log: Log, url: str, home: Path) -> None:
    one, _ = log.receiver_ids
    older = [("value", "string"), ("item", "string"), ("_id", "string")]
    register_schema(log.connection, receiver_id=one, fingerprint="1", columns=older)
    page = text_of(ask(url, "/status/streams/lines").text)
    assert "Columns Column Type From value STRING source item STRING source" in page
    declare_records(log.connection, Json("item STRING NOT NULL, at TIMESTAMP, tags ARRAY<BIGINT>"))
    letters = Letters(log.connection, str(home / "blocks"), one)
    letters.add(DeadLetterReason.DOES_NOT_FIT, [b"{}", b"[]"], dropped=7)
    letters.close()
    page = text_of(ask(url, "/status/streams/lines").text)
    assert "Dead letters 9 7 not kept" in page
    assert "is a dead letter: forebay dead-letters list lines" in page
    assert (
        "item STRING record, NOT NULL at TIMESTAMP record tags ARRAY<BIGINT> record value STRING earlier records "
        "_id STRING source"
    ) in page


def test_links_lead_to_dagsters_runs(log: Log, engine: sa.Engine, home: Path) -> None:
    busy(log)
    run_id = "0123abcd-0123-4567-89ab-0123456789ab"
    log.connection.execute(sa.text("UPDATE forebay.batch_attempts SET run_id = :run"), {"run": run_id})
    with serving(engine, home, dagster_url="http://127.0.0.1:3000") as served:
        page = ask(served, WORDS).text
        assert f'href="http://127.0.0.1:3000/runs/{run_id}"' in page
        assert 'href="http://127.0.0.1:3000/assets/words/batches"' in page
        with urllib.request.urlopen(f"{served}/", timeout=20) as answer:
            assert answer.url.endswith("/status")


def test_problems_come_first_as_in_forebay_status(log: Log, engine: sa.Engine, home: Path) -> None:
    said = "shop.py changed and waits for `forebay apply`: stream '<lines>' is gone. Until then, code abc runs on."
    with serving(engine, home, code=said) as served:
        assert f"Overview Problems 2 {said}" in text_of(ask(served, "/status").text)
    busy(log)
    log.connection.execute(sa.text("UPDATE forebay.receivers SET reason = 'degraded: no such host' WHERE ordinal = 1"))
    # A run that no driver takes.
    log.connection.execute(
        sa.text("INSERT INTO forebay.run_queue VALUES ('r', 'here', NULL, false, clock_timestamp() - interval '1 h')")
    )
    listed = problems(status_of(log.connection))
    assert sum("wait" in one.what and "batch driver" in one.what for one in listed) == 1
    with serving(engine, home) as served:
        page = text_of(ask(served, "/status").text)
    assert f"Overview Problems {len(listed)} {listed[0].line}" in page
    assert all(one.line in page for one in listed if "behind" not in one.what)
    with serving(engine, home) as served:
        assert "Problems" not in text_of(ask(served, "/status/events").text)


def test_the_overview_draws_what_flows_where_with_small_timelines(log: Log, url: str) -> None:
    busy(log)
    page = ask(url, "/status").text
    pictures = page.split('<svg class="flow ')[1:]
    assert len(pictures) == 2
    for picture in pictures:
        for said in ("Source source", "Stream lines: INACTIVE · 0 of 2 active", "Pipeline words: QUARANTINED · "):
            assert f'aria-label="{said}' in picture
        assert f'href="{WORDS}"' in picture
    assert 'aria-label="Total delay of the newest ' in page
    assert "1 quarantined" in page
    assert 'aria-label="Records per second in the newest ' in page


def test_a_pipeline_completed_its_last_batch_by_the_clock(log: Log, url: str) -> None:
    busy(log)
    [status] = pipeline_status(log.connection)
    assert status.last_completed_at is not None
    assert f'<time datetime="{status.last_completed_at.isoformat()}"' in ask(url, "/status").text


def test_empty_batches_push_no_event_off_the_pages(log: Log, url: str) -> None:
    for number in range(1, 1_100):
        log.tracker.allocate_blocks_to_batch(NOON + number * INTERVAL)
    assert all(event.records == 0 for event in newest_events(log.connection, limit=200))
    assert "no records" not in text_of(ask(url, "/status").text)
    page = ask(url, "/status/events").text
    assert "no records" not in text_of(page)
    [older] = re.findall(r'href="(/status/events\?before=[^"]+)" rel="next"', page)
    assert "pipeline_started words" in text_of(ask(url, older).text)


def test_a_pipeline_shows_the_states_of_its_outputs(log: Log, url: str) -> None:
    assert "Next expiry" not in ask(url, WORDS).text
    apply_pipeline(log.connection, name="words", declaration=DECLARATION, stream_ids=[log.stream_id], interval=INTERVAL)
    stated = StatedLog(log)
    stated.run(1, next_expiry=batch_time(9))
    shown = f"{OUTPUT} {batch_time(1):%Y-%m-%d %H:%M:%S} – 400 B {batch_time(9):%Y-%m-%d %H:%M:%S}"  # noqa: RUF001
    assert f"{shown} –" in text_of(ask(url, WORDS).text)  # noqa: RUF001
    assert "Watermark" not in ask(url, WORDS).text
    common = {"stream": "lines", "seen": batch_time(2).isoformat(), "idle": False}
    latest = batch_time(2) - 3 * INTERVAL
    sources = [{**common, "source": "2:0", "latest": latest.isoformat()}]
    stated.run(2, watermark=latest - 3 * INTERVAL, late=1_234, event_times=sources, next_expiry=batch_time(9))
    far = f"{latest - 3 * INTERVAL:%Y-%m-%d %H:%M:%S} 1 min lines/2:0 {latest:%Y-%m-%d %H:%M:%S} 1,234"
    shown = f"{OUTPUT} {batch_time(2):%Y-%m-%d %H:%M:%S} – 400 B {batch_time(9):%Y-%m-%d %H:%M:%S} {far}"  # noqa: RUF001
    assert f"{shown} –" in text_of(ask(url, WORDS).text)  # noqa: RUF001
    replay = begin_state_replay(log.connection, pipeline_id=log.pipeline_id, output=OUTPUT, from_time=batch_time(1))
    said = f"replay {replay}, RUNNING: no result is from replay {replay} yet"
    assert f"{shown} {said}" in text_of(ask(url, WORDS).text)
    assert f"Output {OUTPUT} of words is in replay {replay}" in text_of(ask(url, "/status").text)


def test_what_is_not_there_is_404(log: Log, url: str) -> None:
    for path in (
        *("/status/nope", "/status/pipelines/nope", f"{WORDS}/batches/1", f"{WORDS}/batches/x"),
        *("/status/streams/nope", "/status/static/nope.js", f"{WORDS}/batches/{10**18}"),
    ):
        answer = ask(url, path)
        assert (answer.status, "There is no such page" in answer.text) == (404, True), path
    for path, meant in (("/status/pipelines/word", "words"), ("/status/streams/line", "lines")):
        assert f"Did you mean {meant}?" in ask(url, path).text
    assert "did you mean words?" in ask(url, "/api/v1/applications/word").text


def test_without_the_driver_log_the_page_says_so(home: Path) -> None:
    engine = create_engine("postgresql+psycopg2://nobody:secret@127.0.0.1:1/none", application_name="test")
    with serving(engine, home) as served:
        answer = ask(served, "/status")
        assert answer.status == 503
        assert "The driver log does not answer" in answer.text
        assert "secret" not in answer.text
        assert ask(served, "/status/static/status.js").status == 200
    engine.dispose()


def test_with_a_token_a_link_lets_a_browser_in(engine: sa.Engine, home: Path) -> None:
    with serving(engine, home, address=ListenAddress("127.0.0.1", 0, "tok")) as served:
        assert ask(served, "/status").status == 401
        assert ask(served, "/status/static/status.js").status == 401
        assert ask(served, "/status", Authorization="Bearer tok").status == 200
        # Any name: with a token, a page of another site can't send it.
        assert ask(served, "/status", Authorization="Bearer tok", Host="tracker.example").status == 200
        assert ask(served, "/status?token=wrong").status == 401
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with browser.open(f"{served}/status?token=tok", timeout=20) as answer:
            assert answer.url == f"{served}/status"
        with browser.open(f"{served}/status/events", timeout=20) as answer:
            assert answer.status == 200
        assert ask(served, "/status", Cookie="forebay_tracker_0=tok").status == 401


def test_batches_are_sorted_filtered_and_turned(connection: sa.Connection) -> None:
    fill(connection, Size(batches=130))
    # Records and delays that differ.
    connection.exec_driver_sql("SET session_replication_role = replica")
    connection.exec_driver_sql("UPDATE forebay.batches SET records = extract(epoch FROM batch_time)::bigint %% 997")
    connection.exec_driver_sql("RESET session_replication_role")
    [pipeline, *_] = pipeline_status(connection)
    every = [row for row in batch_stats(connection, limit=1000) if row.pipeline == pipeline.pipeline]

    def page(
        order: store.BatchOrder = store.BatchOrder.TIME, *, window: int = 1000, offset: int = 0, ascending: bool = False
    ) -> list[store.PageBatch]:
        return store.page_of_finished(
            connection,
            pipeline.pipeline_id,
            before=None,
            window=window,
            states=tuple(store.FinishedState),
            sort=store.BatchSort(order, ascending),
            offset=offset,
            limit=50,
        )

    assert [row.batch_time for row in page()] == [row.batch_time for row in every[:50]]
    assert [row.batch_time for row in page(offset=50)] == [row.batch_time for row in every[50:100]]
    records = [row.records for row in every]
    assert [row.records for row in page(store.BatchOrder.RECORDS)] == sorted(records, reverse=True)[:50]
    assert [row.records for row in page(store.BatchOrder.RECORDS, ascending=True)] == sorted(records)[:50]
    assert [row.records for row in page(store.BatchOrder.RECORDS, window=60)] == sorted(records[:60], reverse=True)[:50]


def test_agents_and_events_are_those_that_commands_list(log: Log) -> None:
    busy(log)
    for name in ("a", "b"):
        register_process(log.connection, kind=ProcessKind.AGENT, name=name, host=f"host-{name}", pid=1, slots=3)
    listed = [(row.name, row.host, row.slots, row.receivers) for row in list_agents(log.connection) if row.agent_id]
    shown = store.page_of_agents(log.connection, offset=0, limit=10)
    assert [(row.agent, row.host, row.slots, row.receivers) for row in shown] == listed
    newest = newest_events(log.connection, limit=6)[::-1]
    assert store.page_of_events(log.connection, before=None, limit=6) == newest
    before = cast("tuple[int, int]", tuple(int(part) for part in newest[2].event_id.split("-")))
    assert store.page_of_events(log.connection, before=before, limit=3) == newest[3:]


def test_a_page_reads_no_more_with_a_longer_history_and_more_receivers(connection: sa.Connection) -> None:
    """Check that the receivers' page costs its receivers, and the batches' pages their window, whatever there is."""
    fill(connection, Size(receivers=600, streams=1, pipelines=1, batches=60, events=5))
    [stream] = store.page_of_streams(connection, offset=0, limit=10)
    assert stream.receivers == 600
    found = store.page_stream(connection, stream.stream)
    assert found is not None
    stream_id, _ = found
    with reading(connection) as read:
        rows = store.page_of_receivers(connection, stream_id, state=None, after=300, limit=51)
    assert [row.ordinal for row in rows] == list(range(301, 352))
    # Each has about ten probes; the tables of processes and totals are small enough to be read whole each time.
    assert read.buffers < 51 * 25
    pipeline_id = pipeline_status(connection)[0].pipeline_id
    with reading(connection) as read:
        assert len(store.newest_finished(connection, pipeline_id, limit=20)) == 20
    assert read.rows + read.entries < 20 * 12
    with reading(connection) as read:
        assert len(store.page_of_events(connection, before=None, limit=20)) == 20
    assert read.rows + read.entries < 20 * 30
    assert store.unfinished(connection, pipeline_id, limit=10) == []


def test_a_receivers_rate_is_of_its_newest_blocks(log: Log) -> None:
    one, two = log.receiver_ids
    log.add_at(one, NOON, NOON + SECOND, records=10)
    log.connection.execute(
        sa.text("UPDATE forebay.blocks SET added_at = clock_timestamp() - interval '10 s' WHERE receiver_id = :one"),
        {"one": one},
    )
    rows = store.page_of_receivers(log.connection, log.stream_id, state=None, after=0, limit=10)
    rates = {row.receiver_id: row.records_per_second for row in rows}
    assert rates[one] == pytest.approx(2.0, rel=0.3)
    assert rates[two] is None
