"""Test the tracker's HTTP server on a real driver log with a real client: every endpoint, and every kind of refusal."""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import urllib.error
import urllib.request
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestration.tracker.http.http import STATEMENT_TIMEOUT, PageContent, TrackerHttpServer, TrackerView
from orchestration.tracker.http.listen_address import ListenAddress
from orchestration.tracker.tracker import Tracker
from tests.support.clock import Clock
from tests.support.driver_log.attempts import claim_batch, commit_batch, fail_batch
from tests.support.driver_log.log import INTERVAL, NOON, Log, make_log
from tests.support.machine.held_ports import held_port
from tests.support.polling import eventually
from tests.support.searches import examples
from tests.support.servers.tracker_answers import Answer, answer_to, served
from tracker_store.batches import batches
from tracker_store.batches.batch_outputs import fail_output
from tracker_store.batches.pipelines import apply_pipeline
from tracker_store.batches.readers import attach_reader, move_reader
from tracker_store.blocks.replica_events import replica_back, replica_damaged, replica_lost
from tracker_store.connection.engine import create_engine
from tracker_store.host.code_in_force import CodeState
from tracker_store.receivers.processes import deregister_process, heartbeat, register_process
from tracker_store.receivers.receivers import NOT_STORING, report_event
from tracker_store.reports.status import receiver_status
from tracker_store.schema.states import AttemptFailure, ProcessKind, ReceiverEventKind

if TYPE_CHECKING:
    from collections.abc import Iterator

SECOND = timedelta(seconds=1)
STREAMING = "/api/v1/applications/words/streaming"
NOON_MS = 1767268800000
LOOPBACK = ListenAddress("127.0.0.1", 0)


def ask(url: str, path: str, **headers: str) -> Answer:
    return answer_to(urllib.request.Request(url + path, headers=headers))


class Ticking:
    """A clock that moves by two seconds at every look, so that no look gets the previous one's answer."""

    now = 1000.0

    def __call__(self) -> float:
        self.now += 2.0
        return self.now


@contextlib.contextmanager
def serving(
    engine: sa.Engine,
    home: Path,
    *,
    address: ListenAddress = LOOPBACK,
    term: int | None = None,
    dagster_url: str | None = None,
    code: str = "",
) -> Iterator[str]:
    view = TrackerView("host:1", lambda: term, lambda: {} if term is None else {7: 1.5})
    server = TrackerHttpServer(
        engine,
        view,
        address,
        address_file=home / "run" / "tracker.url",
        clock=Ticking(),
        content=PageContent(dagster_url=dagster_url, code=lambda: CodeState(code)),
    )
    with served(server) as url:
        yield url


@pytest.fixture
def log(connection: sa.Connection) -> Log:
    made = make_log(connection, receivers=2)
    apply_pipeline(
        connection,
        name="words",
        declaration={
            "max_attempts": 1,
            "streams": ["lines"],
            "outputs": {
                "counts": {"inputs": ["lines"]},
                "kept": {"inputs": ["lines"]},
                "windowed": {"inputs": [{"window": "lines", "length_ms": 60_000, "slide_ms": 60_000}]},
            },
        },
        stream_ids=[made.stream_id],
        interval=INTERVAL,
    )
    return made


@pytest.fixture
def url(engine: sa.Engine, home: Path) -> Iterator[str]:
    with serving(engine, home) as served:
        yield served


def claim(log: Log, batch: int, attempt: int = 1) -> None:
    process = register_process(log.connection, kind=ProcessKind.BATCH_RUN, name="run", host="h", pid=1)
    time = NOON + batch * INTERVAL
    claim_batch(log.connection, log.pipeline_id, time, attempt, run_id=f"run-{batch}-{attempt}", process_id=process)
    # The attempt starts 2 s after its batch time.
    log.connection.execute(
        sa.text("UPDATE forebay.batch_attempts SET started_at = :at WHERE batch_time = :time AND attempt = :attempt"),
        {"at": time + 2 * SECOND, "time": time, "attempt": attempt},
    )


def commit(log: Log, batch: int, output: str, attempt: int = 1) -> None:
    commit_batch(
        log.connection, log.pipeline_id, NOON + batch * INTERVAL, output, attempt, location=f"/{output}/{batch}"
    )


def complete(log: Log, batch: int) -> None:
    """Run a batch from 2 to 5 s after its time."""
    time = NOON + batch * INTERVAL
    claim(log, batch)
    commit(log, batch, "counts")
    commit(log, batch, "kept")
    batches.complete_batch(
        log.connection, pipeline_id=log.pipeline_id, batch_time=time, attempt=1, outputs=["counts", "kept"]
    )
    end = {"at": time + 5 * SECOND, "time": time}
    log.connection.execute(sa.text("UPDATE forebay.batches SET completed_at = :at WHERE batch_time = :time"), end)
    log.connection.execute(
        sa.text("UPDATE forebay.output_commits SET committed_at = :at WHERE batch_time = :time"), end
    )


def fail(log: Log, batch: int, max_attempts: int) -> None:
    time = NOON + batch * INTERVAL
    claim(log, batch)
    commit(log, batch, "counts")
    fail_output(
        log.connection,
        pipeline_id=log.pipeline_id,
        batch_time=time,
        attempt=1,
        output="kept",
        failure=AttemptFailure.FAILED,
        error="no number: 'x'",
    )
    fail_batch(log.connection, log.pipeline_id, time, run_id=f"run-{batch}-1", error="boom", max_attempts=max_attempts)
    log.connection.execute(
        sa.text("UPDATE forebay.batch_attempts SET ended_at = :at WHERE batch_time = :time"),
        {"at": time + 3 * SECOND, "time": time},
    )


def allocate(log: Log, first: int, last: int) -> None:
    for batch in range(first, last + 1):
        log.tracker.allocate_blocks_to_batch(NOON + batch * INTERVAL)


def due(log: Log, batches_due: int) -> None:
    """Leave this number of batch times due and undecided, for as long as the test takes."""
    log.connection.execute(
        sa.text(
            "UPDATE forebay.pipelines SET last_batch_time = clock_timestamp() - :due * interval '1 hour', "
            "batch_interval = CASE WHEN :due > 0 THEN interval '59 minutes' ELSE batch_interval END"
        ),
        {"due": batches_due or -1},
    )


def busy(log: Log) -> None:
    """Make six batches: complete, quarantined, without records, between attempts, running, waiting; one block waits.

    No further batch is due.
    """
    one, two = log.receiver_ids
    log.add_at(one, *(NOON + batch * INTERVAL + SECOND for batch in (0, 1, 3, 4, 5, 6)), records=10)
    log.add_at(two, NOON + SECOND, records=30)
    allocate(log, 1, 6)
    complete(log, 1)
    fail(log, 2, max_attempts=1)
    fail(log, 4, max_attempts=3)
    claim(log, 5)
    commit(log, 5, "counts")
    due(log, 0)


# -- about the process -------------------------------------------------------------------------------------------------


def test_a_candidate_is_healthy_and_ready_and_reports_that_it_does_not_lead(engine: sa.Engine, home: Path) -> None:
    with serving(engine, home) as url:
        health, ready = ask(url, "/health"), ask(url, "/ready")
    assert (health.status, health.json) == (200, {"status": "ok", "leading": False, "term": None, "name": "host:1"})
    assert (ready.status, ready.json) == (200, {"status": "ready", "leading": False, "leader": None})


def test_a_leader_reports_that_it_leads(engine: sa.Engine, home: Path) -> None:
    with serving(engine, home, term=4) as url:
        assert ask(url, "/health").json["leading"] is True
        assert ask(url, "/ready").json["leading"] is True
        assert ask(url, "/metrics").samples["forebay_leadership_term",] == 4


def test_without_a_driver_log_the_tracker_is_healthy_but_not_ready_and_says_why(home: Path) -> None:
    away = create_engine("postgresql://nobody@127.0.0.1:1/none", application_name="tests")
    with serving(away, home) as url:
        assert ask(url, "/health").status == 200
        ready = ask(url, "/ready")
        assert ready.status == 503
        assert "Connection refused" in ready.json["reason"]
        metrics = ask(url, "/metrics")
        assert metrics.status == 200
        assert metrics.samples == {("forebay_driver_log_up",): 0, ("forebay_tracker_leading",): 0}
        for path in ("/api/v1/applications", f"{STREAMING}/statistics", f"{STREAMING}/batches/1"):
            refused = ask(url, path)
            assert refused.status == 503
            assert "Connection refused" in refused.json["error"]


def test_the_tracker_is_ready_again_when_the_driver_log_is(engine: sa.Engine, home: Path, log: Log) -> None:
    with serving(engine, home) as url:
        # A statement that waits for a lock times out; this one fails at once.
        log.connection.exec_driver_sql("ALTER TABLE forebay.leadership RENAME TO elsewhere")
        assert ask(url, "/ready").status == 503
        log.connection.exec_driver_sql("ALTER TABLE forebay.elsewhere RENAME TO leadership")
        assert ask(url, "/ready").status == 200


def test_a_hanging_driver_log_delays_no_request_for_long(database_url: str, home: Path, log: Log) -> None:
    assert STATEMENT_TIMEOUT == "5s"
    engine = create_engine(database_url, application_name="tests", statement_timeout="200ms")
    with serving(engine, home) as url, log.connection.engine.connect() as holder:
        cursor = holder.connection.cursor()
        cursor.execute("BEGIN; LOCK forebay.pipelines IN ACCESS EXCLUSIVE MODE")
        assert ask(url, "/metrics").samples["forebay_driver_log_up",] == 0
        assert ask(url, f"{STREAMING}/batches").status == 503
        # On a busy machine a statement that waits for no lock may take 200 ms too.
        eventually(lambda: ask(url, "/ready").status == 200, "the statement that needs no lock")
        cursor.execute("ROLLBACK")
        eventually(lambda: ask(url, "/metrics").samples["forebay_driver_log_up",] == 1, "the driver log")
    engine.dispose()


def test_the_address_is_in_a_file_while_the_server_runs(engine: sa.Engine, home: Path) -> None:
    with serving(engine, home) as url:
        assert (home / "run" / "tracker.url").read_text() == f"{url}\n"
    assert not (home / "run" / "tracker.url").exists()
    with pytest.raises(urllib.error.URLError):
        ask(url, "/health")


def test_the_server_waits_for_a_port_in_use(engine: sa.Engine, home: Path) -> None:
    with held_port() as port, socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        view = TrackerView("host:1", lambda: None, dict)
        server = TrackerHttpServer(
            engine, view, ListenAddress("127.0.0.1", port), address_file=home / "url", first_retry_seconds=0.01
        )
        with server:
            eventually(lambda: server.refused > 2, "some tries")
            assert server.url is None
            taken.close()
            eventually(lambda: server.url, "the port")
            assert ask(f"http://127.0.0.1:{port}", "/health").status == 200


def test_the_server_stops_even_if_its_port_is_never_free(engine: sa.Engine, home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = ListenAddress("127.0.0.1", taken.getsockname()[1])
        server = TrackerHttpServer(
            engine, TrackerView("host:1", lambda: None, dict), address, address_file=home / "url"
        )
        with server:
            eventually(lambda: server.refused, "a try")
        assert not server.serves


# -- who may ask -------------------------------------------------------------------------------------------------------


def test_without_the_token_only_the_state_of_the_process_is_shown(engine: sa.Engine, home: Path, log: Log) -> None:
    with serving(engine, home, address=ListenAddress("127.0.0.1", 0, "secret")) as url:
        for path in ("/metrics", "/api/v1/applications", f"{STREAMING}/batches", "/nothing"):
            for headers in (
                {},
                {"Authorization": "Bearer wrong"},
                {"Authorization": "secret"},
                {"Authorization": "Bearer sécret"},
            ):
                refused = ask(url, path, **headers)
                assert refused.status == 401, path
                assert refused.headers["www-authenticate"] == "Bearer"
                assert "FOREBAY_TRACKER_TOKEN" in refused.text
        assert ask(url, "/health").json == {"status": "ok", "leading": False, "term": None}
        assert ask(url, "/ready").json == {"status": "ready", "leading": False}
        for path in ("/metrics", "/api/v1/applications", f"{STREAMING}/batches"):
            assert ask(url, path, Authorization="Bearer secret").status == 200


def test_without_a_token_a_page_under_another_host_name_reads_nothing(url: str, log: Log) -> None:
    refused = ask(url, "/metrics", Host="rebound.example:80")
    assert refused.status == 403
    assert "FOREBAY_TRACKER_TOKEN" in refused.text
    for host in ("localhost", "localhost:3070", "127.0.0.1", "[::1]:3070", "[::1]"):
        assert ask(url, "/metrics", Host=host).status == 200, host


def test_only_reading_is_possible(url: str) -> None:
    request = urllib.request.Request(url + "/metrics", method="POST", data=b"")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=20)
    assert refused.value.code == 405
    assert "GET" in refused.value.headers["allow"]
    refused.value.close()


# -- metrics -----------------------------------------------------------------------------------------------------------


def test_metrics_are_in_the_format_that_the_request_accepts(url: str) -> None:
    answer = ask(url, "/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0; charset=utf-8")
    assert answer.text.endswith("# EOF\n")
    answer = ask(url, "/metrics", Accept="application/openmetrics-text; version=latest")
    assert (answer.status, answer.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")


def test_o01_before_any_batch_what_is_missing_is_minus_one_and_records_are_0(url: str, log: Log) -> None:
    due(log, 0)
    samples = ask(url, "/metrics").samples
    streaming = {
        name[0].removeprefix("streaming_"): value
        for name, value in samples.items()
        if name[0].startswith("streaming_") and name[1:] == ("words",)
    }
    counts = {
        "receivers": 2,
        "totalCompletedBatches": 0,
        "totalReceivedRecords": 0,
        "totalProcessedRecords": 0,
        "unprocessedBatches": 0,
        "waitingBatches": 0,
        "runningBatches": 0,
        "retainedCompletedBatches": 0,
        "lastReceivedBatch_records": 0,
    }
    assert {name: value for name, value in streaming.items() if name in counts} == counts
    assert {value for name, value in streaming.items() if name not in counts} == {-1}


def test_o01_the_gauges_count_as_the_original_does(url: str, log: Log) -> None:
    busy(log)
    samples = ask(url, "/metrics").samples
    streaming = {name[0].removeprefix("streaming_"): value for name, value in samples.items() if name[1:] == ("words",)}
    # Complete, quarantined, and without records; the others come after the first unfinished batch.
    assert streaming["totalCompletedBatches"] == 3
    assert streaming["totalProcessedRecords"] == 40 + 10
    # Batches with an attempt count as received.
    assert streaming["totalReceivedRecords"] == 50 + 10 + 10
    assert (streaming["unprocessedBatches"], streaming["waitingBatches"], streaming["runningBatches"]) == (3, 2, 1)
    assert streaming["lastCompletedBatch_processingStartTime"] == -1, "the third had no records: nothing ran"
    assert streaming["lastReceivedBatch_records"] == 10
    assert streaming["lastReceivedBatch_submissionTime"] > NOON_MS
    assert streaming["lastReceivedBatch_processingEndTime"] == -1
    assert streaming["forebay_quarantined_batches_total"] == 1


def test_o01_batches_that_are_due_and_not_allocated_wait(url: str, log: Log) -> None:
    busy(log)
    due(log, 3)
    samples = ask(url, "/metrics").samples
    assert samples["streaming_waitingBatches", "words"] == 2 + 3
    assert samples["streaming_unprocessedBatches", "words"] == 3 + 3
    assert ask(url, f"{STREAMING}/statistics").json["numActiveBatches"] == 3 + 3
    log.connection.execute(sa.text("UPDATE forebay.pipelines SET state = 'STOPPED'"))
    assert ask(url, "/metrics").samples["streaming_waitingBatches", "words"] == 2


def test_o01_delays_of_the_last_completed_batch_are_in_milliseconds(url: str, log: Log) -> None:
    log.add_at(log.receiver_ids[0], NOON + SECOND)
    allocate(log, 1, 1)
    complete(log, 1)
    samples = ask(url, "/metrics").samples

    def last(name: str) -> float:
        return samples[f"streaming_lastCompletedBatch_{name}", "words"]

    assert (last("schedulingDelay"), last("processingDelay"), last("totalDelay")) == (2000, 3000, 5000)
    assert last("processingStartTime") == NOON_MS + 12_000
    assert last("processingEndTime") == NOON_MS + 15_000
    assert samples["streaming_lastReceivedBatch_processingEndTime", "words"] == NOON_MS + 15_000


def test_totals_continue_from_look_to_look_and_count_each_batch_once(url: str, log: Log) -> None:
    times = [NOON + batch * INTERVAL + SECOND for batch in range(5)]
    log.add_at(log.receiver_ids[0], *times)

    def totals() -> tuple[float, float]:
        samples = ask(url, "/metrics").samples
        return tuple(samples[f"streaming_total{what}", "words"] for what in ("CompletedBatches", "ProcessedRecords"))  # type: ignore[return-value]

    assert totals() == (0, 0)
    allocate(log, 1, 5)
    complete(log, 1)
    assert totals() == (1, 10)
    assert totals() == (1, 10)
    # A batch completed before an older one waits for it, and is not forgotten.
    complete(log, 3)
    assert totals() == (1, 10)
    complete(log, 2)
    assert totals() == (3, 30)
    fail(log, 4, max_attempts=1)
    complete(log, 5)
    assert totals() == (5, 50)


def test_receivers_have_rates_restarts_and_dead_letters_from_look_to_look(url: str, log: Log) -> None:
    one, two = log.receiver_ids
    first = ask(url, "/metrics").samples
    assert first["forebay_receiver_records_total", "1", "lines"] == 0
    assert ("forebay_receiver_records_per_second", "1", "lines") not in first
    claimed = log.add_at(one, NOON + SECOND, NOON + 2 * SECOND, records=10)
    for kind in (ReceiverEventKind.RESTARTED, ReceiverEventKind.EXITED, ReceiverEventKind.ERROR):
        report_event(log.connection, receiver_id=two, epoch=0, kind=kind, message="m")
    for message in (replica_lost("/b"), replica_damaged("/b")):
        report_event(log.connection, receiver_id=one, epoch=0, kind=ReceiverEventKind.ERROR, message=message)
    report_event(log.connection, receiver_id=one, epoch=0, kind=ReceiverEventKind.CONNECTED, message=replica_back("/b"))
    log.connection.execute(
        sa.text(
            "INSERT INTO forebay.dead_letters "
            '(receiver_id, epoch, reason, part, bytes, segment_id, "offset", length, crc32c) '
            "SELECT :receiver, :epoch, 'too long', n % 2, 1, 1, n, 1, 1 FROM generate_series(0, 2) AS n"
        ),
        {"receiver": one, "epoch": claimed.epoch},
    )
    for _ in range(2):
        second = ask(url, "/metrics").samples
        # The second look comes 2 s after the first: recent events are counted once.
        assert second["forebay_receiver_records_total", "1", "lines"] == 20
        assert second["forebay_receiver_bytes_total", "1", "lines"] == 200
        assert second["forebay_receiver_wal_bytes", "1", "lines"] == 200
        assert second["forebay_receiver_restarts_total", "2", "lines"] == 2
        assert second["forebay_receiver_restarts_total", "1", "lines"] == 0
        assert second["forebay_receiver_dead_letters_total", "1", "lines"] == 2
        assert second["forebay_receiver_replica_problems_total", "1", "lines"] == 2
        assert second["forebay_receiver_replica_problems_total", "2", "lines"] == 0
    assert second["forebay_receiver_records_per_second", "1", "lines"] == 0


def test_the_rate_counts_records_since_the_previous_look(url: str, log: Log) -> None:
    ask(url, "/metrics")
    log.add_at(log.receiver_ids[0], NOON + SECOND, NOON + 2 * SECOND, records=10)
    samples = ask(url, "/metrics").samples
    assert samples["forebay_receiver_records_per_second", "1", "lines"] == 10
    assert samples["forebay_receiver_bytes_per_second", "1", "lines"] == 100


def test_counted_events_stay_counted_when_they_are_no_longer_recent(url: str, log: Log) -> None:
    ask(url, "/metrics")
    restarts = ("forebay_receiver_restarts_total", "1", "lines")

    def restart(age: str) -> None:
        log.connection.execute(
            sa.text(
                "INSERT INTO forebay.receiver_events (receiver_id, epoch, at, kind, message) "
                "VALUES (:receiver, 0, clock_timestamp() - CAST(:age AS interval), 'RESTARTED', 'm')"
            ),
            {"receiver": log.receiver_ids[0], "age": age},
        )

    restart("2 minutes")
    assert ask(url, "/metrics").samples[restarts] == 1
    restart("90 seconds")
    restart("1 second")
    assert ask(url, "/metrics").samples[restarts] == 3
    assert ask(url, "/metrics").samples[restarts] == 3


def test_the_blocks_that_a_named_reader_holds_back_are_reported(url: str, log: Log) -> None:
    log.add_at(log.receiver_ids[0], NOON + SECOND, NOON + 2 * SECOND, records=10)
    reader = attach_reader(log.connection, name="counting", stream="lines")
    samples = ask(url, "/metrics").samples
    assert samples["forebay_reader_waiting_records", "counting", "lines"] == 20
    assert samples["forebay_reader_waiting_bytes", "counting", "lines"] == 200
    move_reader(log.connection, reader.reader_id, {log.receiver_ids[0]: 4})
    assert ask(url, "/metrics").samples["forebay_reader_waiting_records", "counting", "lines"] == 0


def test_lag_state_and_rate_limit(url: str, log: Log) -> None:
    one, _ = log.receiver_ids
    log.add_at(one, NOON + SECOND, NOON + 2 * SECOND, records=10)
    log.connection.execute(
        sa.text("UPDATE forebay.receivers SET state = 'ACTIVE', rate_limit = 12.5 WHERE id = :id"), {"id": one}
    )
    samples = ask(url, "/metrics").samples
    assert samples["forebay_stream_waiting_blocks", "words", "lines"] == 3, "with the marker"
    assert samples["forebay_stream_waiting_records", "words", "lines"] == 20
    assert samples["forebay_stream_waiting_bytes", "words", "lines"] == 200
    assert samples["forebay_stream_lag_seconds", "words", "lines"] > 0
    assert samples["forebay_receiver_state", "1", "ACTIVE", "lines"] == 1
    assert samples["forebay_receiver_state", "1", "FAILED", "lines"] == 0
    assert samples["forebay_receiver_state", "2", "INACTIVE", "lines"] == 1
    assert samples["forebay_receiver_rate_limit", "1", "lines"] == 12.5
    assert ("forebay_receiver_rate_limit", "2", "lines") not in samples


def test_a_degraded_receiver_is_reported_with_its_cause(url: str, log: Log) -> None:
    log.connection.execute(
        sa.text("UPDATE forebay.receivers SET state = 'ACTIVE', reason = :reason WHERE id = :id"),
        {"id": log.receiver_ids[0], "reason": f"{NOT_STORING} for 60 s: the disk is full"},
    )
    samples = ask(url, "/metrics").samples
    assert samples["forebay_receiver_degraded", "source", "1", "lines"] == 0
    assert samples["forebay_receiver_degraded", "storing", "1", "lines"] == 1
    assert samples["forebay_receiver_degraded", "storing", "2", "lines"] == 0


def test_how_full_a_receivers_queue_is(url: str, log: Log) -> None:
    one, two = log.receiver_ids
    process_id = register_process(log.connection, kind=ProcessKind.RECEIVER, name="r", host="h", pid=1)
    log.connection.execute(sa.text("UPDATE forebay.receivers SET process_id = :p"), {"p": process_id})
    # A receiver has no queue before its claim.
    heartbeat(log.connection, process_id=process_id, receiver_ids=[one, two], queued={one: 7})
    samples = ask(url, "/metrics").samples
    assert samples["forebay_receiver_queue_blocks", "1", "lines"] == 7
    assert ("forebay_receiver_queue_blocks", "2", "lines") not in samples
    assert [row.queued_blocks for row in receiver_status(log.connection)] == [7, None]
    # A process that has ended holds no blocks.
    deregister_process(log.connection, process_id)
    assert [row.queued_blocks for row in receiver_status(log.connection)] == [None, None]


def test_a_pipelines_state_and_for_how_long_it_holds_blocks_back(url: str, log: Log) -> None:
    samples = ask(url, "/metrics").samples
    assert samples["forebay_pipeline_state", "words", "RUNNING"] == 1
    assert samples["forebay_pipeline_state", "words", "STOPPED"] == 0
    assert samples["forebay_pipeline_holds_back_seconds", "words"] == 0
    log.add_at(log.receiver_ids[0], NOON)
    log.connection.execute(
        sa.text("UPDATE forebay.pipelines SET state = 'STOPPED', applied_at = clock_timestamp() - interval '2 hours'")
    )
    eventually(
        lambda: ask(url, "/metrics").samples["forebay_pipeline_state", "words", "STOPPED"], "the next look's answer"
    )
    assert ask(url, "/metrics").samples["forebay_pipeline_holds_back_seconds", "words"] == pytest.approx(7200, abs=60)


def test_only_the_leader_reports_the_lease_age(engine: sa.Engine, home: Path, log: Log) -> None:
    log.connection.execute(sa.text("UPDATE forebay.receivers SET process_id = 7 WHERE ordinal = 1"))
    age = ("forebay_receiver_lease_age_seconds", "1", "lines")
    with serving(engine, home, term=1) as url:
        samples = ask(url, "/metrics").samples
        assert samples[age] == 1.5
        assert ("forebay_receiver_lease_age_seconds", "2", "lines") not in samples
    with serving(engine, home) as url:
        assert age not in ask(url, "/metrics").samples


def test_a_leading_tracker_reports_since_when_a_heartbeat_stands_still(engine: sa.Engine, log: Log) -> None:
    clock = Clock()
    beats = register_process(log.connection, kind=ProcessKind.RECEIVER, name="r", host="h", pid=1)
    silent = register_process(log.connection, kind=ProcessKind.RECEIVER, name="r", host="h", pid=2)
    tracker = Tracker(engine, heartbeat_limit_seconds=10, clock=clock)
    assert tracker.lease_ages() == {}
    for _ in range(4):
        heartbeat(log.connection, process_id=beats)
        tracker.tick(log.connection)
        clock.now += 1
    assert tracker.lease_ages() == {beats: 0, silent: 3}


# -- the original's REST endpoints -------------------------------------------------------------------------------------


def test_o03_applications(url: str, log: Log) -> None:
    [application] = ask(url, "/api/v1/applications").json
    assert (application["id"], application["name"]) == ("words", "words")
    assert application["attempts"][0]["completed"] is False
    assert ask(url, "/api/v1/applications/words").json["id"] == "words"


def test_o03_statistics(url: str, log: Log) -> None:
    busy(log)
    log.connection.execute(sa.text("UPDATE forebay.receivers SET state = 'ACTIVE' WHERE ordinal = 2"))
    statistics = ask(url, f"{STREAMING}/statistics").json
    assert statistics == {
        "startTime": "2026-01-01T12:00:10.000GMT",
        "batchDuration": 10_000,
        "numReceivers": 2,
        "numActiveReceivers": 1,
        "numInactiveReceivers": 1,
        "numTotalCompletedBatches": 3,
        "numRetainedCompletedBatches": 3,
        "numActiveBatches": 3,
        "numProcessedRecords": 50,
        "numReceivedRecords": 70,
        "avgInputRate": pytest.approx((4 + 1 + 0 + 1 + 1 + 1) / 6),
        "avgSchedulingDelay": 2000,
        "avgProcessingTime": (3000 + 1000) // 2,
        "avgTotalDelay": (5000 + 3000) // 2,
    }


def test_o03_without_batches_there_are_no_averages(url: str, log: Log) -> None:
    statistics = ask(url, f"{STREAMING}/statistics").json
    assert not any(name.startswith("avg") for name in statistics)


def test_o03_receivers(url: str, log: Log) -> None:
    busy(log)
    one, two = log.receiver_ids
    agent = register_process(log.connection, kind=ProcessKind.AGENT, name="a1", host="h1", pid=1, slots=2)
    log.connection.execute(
        sa.text("UPDATE forebay.receivers SET state = 'ACTIVE', agent_id = :agent WHERE id = :id"),
        {"agent": agent, "id": one},
    )
    report_event(
        log.connection, receiver_id=one, epoch=1, kind=ReceiverEventKind.ERROR, message="refused", detail="a stack"
    )
    listed = ask(url, f"{STREAMING}/receivers").json
    assert [receiver["streamId"] for receiver in listed] == [one, two]
    first = ask(url, f"{STREAMING}/receivers/{one}").json
    assert first == listed[0]
    assert first.pop("lastErrorTime").endswith("GMT")
    assert first == {
        "streamId": one,
        "streamName": "lines-1",
        "isActive": True,
        "executorId": "a1",
        "executorHost": "h1",
        "lastErrorMessage": "refused",
        "lastError": "a stack",
        "avgEventRate": pytest.approx(5 / 6),
        "eventRates": [[NOON_MS + n * 10_000, rate] for n, rate in enumerate((1.0, 1.0, 0.0, 1.0, 1.0, 1.0), start=1)],
    }
    assert listed[1]["isActive"] is False
    assert listed[1]["eventRates"][0] == [NOON_MS + 10_000, 3.0]
    assert not {"executorId", "executorHost", "lastErrorTime", "lastError"} & listed[1].keys()


def test_o03_batches_newest_first_with_the_originals_statuses(url: str, log: Log) -> None:
    busy(log)
    listed = ask(url, f"{STREAMING}/batches").json
    assert [(batch["batchId"] - NOON_MS) // 10_000 for batch in listed] == [6, 5, 4, 3, 2, 1]
    assert [batch["status"] for batch in listed] == [
        "QUEUED",
        "PROCESSING",
        "QUEUED",
        "COMPLETED",
        "COMPLETED",
        "COMPLETED",
    ]
    assert listed[-1] == {
        "batchId": NOON_MS + 10_000,
        "batchTime": "2026-01-01T12:00:10.000GMT",
        "status": "COMPLETED",
        "batchDuration": 10_000,
        "inputSize": 40,
        "schedulingDelay": 2000,
        "processingTime": 3000,
        "totalDelay": 5000,
        "numActiveOutputOps": 0,
        "numCompletedOutputOps": 2,
        "numFailedOutputOps": 0,
        "numTotalOutputOps": 2,
    }
    quarantined = listed[4]
    assert (quarantined["numCompletedOutputOps"], quarantined["numFailedOutputOps"]) == (1, 1)
    assert quarantined["firstFailureReason"] == "partially committed (only counts): boom"
    empty = listed[3]
    assert (empty["inputSize"], empty["numTotalOutputOps"]) == (0, 0)
    assert not {"schedulingDelay", "processingTime", "totalDelay", "firstFailureReason"} & empty.keys()
    running = listed[1]
    assert (running["numActiveOutputOps"], running["numCompletedOutputOps"], running["schedulingDelay"]) == (1, 1, 2000)
    assert not {"processingTime", "totalDelay"} & running.keys()
    # The sixth is on a minute: the window's output is due too.
    assert listed[0]["numTotalOutputOps"] == 3
    for batch in listed:
        assert ask(url, f"{STREAMING}/batches/{batch['batchId']}").json == batch


def test_o03_batches_by_status(url: str, log: Log) -> None:
    busy(log)

    def times(query: str) -> list[int]:
        return [(batch["batchId"] - NOON_MS) // 10_000 for batch in ask(url, f"{STREAMING}/batches{query}").json]

    assert times("?status=completed") == [3, 2, 1]
    assert times("?status=QUEUED") == [6, 4]
    assert times("?status=processing") == [5]
    assert times("?status=QUEUED&status=PROCESSING") == [6, 5, 4]
    refused = ask(url, f"{STREAMING}/batches?status=FAILED")
    assert refused.status == 404
    assert "COMPLETED, QUEUED, PROCESSING" in refused.json["error"]


def test_o03_output_operations(url: str, log: Log) -> None:
    busy(log)
    quarantined = f"{STREAMING}/batches/{NOON_MS + 20_000}/operations"
    done, failed = ask(url, quarantined).json
    assert (done["outputOpId"], done["name"], done["jobIds"]) == (0, "counts", [])
    assert done["description"] == "attempt 1, Dagster run run-2-1: /counts/2"
    assert failed == {
        "outputOpId": 1,
        "name": "kept",
        "description": "attempt 1, Dagster run run-2-1",
        "startTime": "2026-01-01T12:00:22.000GMT",
        "endTime": "2026-01-01T12:00:23.000GMT",
        "duration": 1000,
        "failureReason": "no number: 'x'",
        "jobIds": [],
    }
    assert ask(url, f"{quarantined}/1").json == failed
    waiting = ask(url, f"{STREAMING}/batches/{NOON_MS + 60_000}/operations").json
    assert [operation["description"] for operation in waiting] == ["not tried yet"] * 3
    assert not {"startTime", "endTime", "duration"} & waiting[0].keys()


def test_o03_what_is_unknown_is_404(url: str, log: Log) -> None:
    busy(log)
    for path in (
        "/nothing",
        "/api/v1/applications/other",
        "/api/v1/applications/other/streaming/statistics",
        "/api/v1/applications/other/streaming/receivers",
        "/api/v1/applications/other/streaming/batches",
        f"{STREAMING}/receivers/999",
        f"{STREAMING}/receivers/one",
        f"{STREAMING}/receivers/-1",
        f"{STREAMING}/receivers/99999999999999999999",
        f"{STREAMING}/batches/1",
        f"{STREAMING}/batches/noon",
        f"{STREAMING}/batches/9223372036854775807",
        f"{STREAMING}/batches/%D9%A1",
        f"{STREAMING}/batches/1/operations",
        f"{STREAMING}/batches/{NOON_MS + 10_000}/operations/9",
        f"{STREAMING}/batches/{NOON_MS + 10_000}/operations/first",
    ):
        refused = ask(url, path)
        assert refused.status == 404, path
        assert refused.json["error"], path


def test_o03_a_removed_pipeline_is_unknown(url: str, log: Log) -> None:
    assert ask(url, f"{STREAMING}/statistics").status == 200
    log.connection.execute(sa.text("UPDATE forebay.pipelines SET removed_at = clock_timestamp()"))
    assert ask(url, f"{STREAMING}/statistics").status == 404
    assert not any("words" in name for name in ask(url, "/metrics").samples)


# -- what it costs -----------------------------------------------------------------------------------------------------


def test_the_cost_of_a_look_depends_on_new_rows_and_not_on_the_history(engine: sa.Engine, home: Path, log: Log) -> None:
    log.connection.execute(
        sa.text(
            "INSERT INTO forebay.batches "
            "(pipeline_id, batch_time, oldest_time, state, records, bytes, blocks, completed_at) "
            "SELECT :pipeline, t, t, 'COMPLETED', 1, 1, 1, t "
            "FROM generate_series(CAST(:noon AS timestamptz), :noon + interval '50000 minutes', interval '1 minute') t"
        ),
        {"pipeline": log.pipeline_id, "noon": NOON},
    )
    log.connection.execute(
        sa.text(
            "INSERT INTO forebay.receiver_events (receiver_id, epoch, kind, message) "
            "SELECT :receiver, 0, 'RESTARTED', 'm' FROM generate_series(1, 50000)"
        ),
        {"receiver": log.receiver_ids[0]},
    )
    for table in ("batches", "events"):
        log.connection.execute(sa.text(f"ANALYZE forebay.{table}"))

    def rows_read() -> int:
        """Return the rows that scans have fetched, as this database counts them, once every session has reported."""
        log.connection.execute(sa.text("SELECT pg_stat_force_next_flush()"))
        read: int = log.connection.execute(
            sa.text(
                "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint FROM pg_stat_user_tables "
                "WHERE relname IN ('batches', 'batch_attempts', 'events')"
            )
        ).scalar_one()
        return read

    with serving(engine, home) as url:
        before = rows_read()
        samples = ask(url, "/metrics").samples
        assert samples["streaming_totalCompletedBatches", "words"] == 1000
        ask(url, "/metrics")
        # Sessions report when they end.
        engine.dispose()
    eventually(lambda: rows_read() > before, "the statistics")
    assert rows_read() - before < 5000


# What a name can't be, and what a parser may trip over; urllib would refuse to send some of it.
ODD = st.one_of(
    st.text(max_size=6),
    st.sampled_from(
        ["\0", "%", "..", "/", "//", "\x7f", "\ud7ff", "\U0010ffff", "-1", "9" * 30, "1e9", "words", "lines"]
    ),
    st.binary(max_size=4).map(lambda data: data.decode("latin-1")),
)


@pytest.mark.search
@settings(max_examples=examples(300), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_path_query_or_header_is_answered_500(log: Log, url: str, data: st.DataObject) -> None:
    host, port = url.removeprefix("http://").split(":")
    served = TrackerHttpServer(
        log.connection.engine, TrackerView("host:1", lambda: None, dict), LOOPBACK, address_file=Path("unused")
    )
    path = data.draw(st.sampled_from(served.paths))
    for part in re.findall(r"\{[a-z]+\}", path):
        path = path.replace(part, data.draw(ODD | st.just("words")), 1)
    names = st.sampled_from(["page", "before", "state", "sort", "streams", "status", "kind", "x", "after"])
    asked = data.draw(st.lists(st.tuples(names, ODD), max_size=3))
    query = "&".join(f"{name}={quote(value)}" for name, value in asked)
    header = data.draw(st.binary(max_size=12)).replace(b"\r", b"").replace(b"\n", b"")
    method = data.draw(st.sampled_from(["GET", "GET", "HEAD", "POST", "PUT"]))
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    connection.request(method, f"{quote(path, safe='/')}?{query}", headers={"Accept": header, "X-Odd": header})
    assert connection.getresponse().status in {200, 307, 400, 401, 403, 404, 405, 415, 422}
    connection.close()
