"""Test the requests of the tracker's HTTP API that change something: who may send them, what they do, sent twice."""

from __future__ import annotations

import contextlib
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from orchestration.replays.replay_run import AGAIN_TAG
from orchestration.tracker.http import http_writes
from orchestration.tracker.http.http import PageContent, TrackerHttpServer, TrackerView
from orchestration.tracker.http.http_writes import ReplayDagster
from orchestration.tracker.http.listen_address import ListenAddress
from tests.support.dagster.replaying_webserver import ReplayingDagster, replaying_dagster
from tests.support.driver_log.log import INTERVAL, NOON, Log, make_log
from tests.support.driver_log.stated_log import make_stated_log
from tests.support.servers.tracker_answers import Answer, answer_to, served
from tracker_store.batches.pipelines import apply_pipeline
from tracker_store.batches.state_replays import begin_state_replay, stop_state_replay
from tracker_store.receivers.receivers import placements
from tracker_store.reports.listener_events import newest_events
from tracker_store.schema.states import DesiredState, ReceiverState

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WRITE = {"Authorization": "Bearer write-secret", "Content-Type": "application/json"}
T1 = NOON + INTERVAL
PAUSE = "/api/v1/streams/lines/receivers/1/pause"
REPLAY = f"/api/v1/applications/words/streaming/batches/{int(T1.timestamp() * 1000)}/replay"


def post(url: str, path: str, body: bytes = b"", method: str = "POST", **headers: str) -> Answer:
    sent = {**WRITE, **headers}
    request = urllib.request.Request(
        url + path, data=body, method=method, headers={name: value for name, value in sent.items() if value}
    )
    # Without this, urllib adds a type of its own.
    request.unredirected_hdrs.setdefault("Content-type", sent.get("Content-Type") or "text/none")
    return answer_to(request)


@pytest.fixture
def dagster() -> Iterator[ReplayingDagster]:
    with replaying_dagster() as server:
        yield server


@contextlib.contextmanager
def serving(
    engine: sa.Engine, home: Path, *, write_token: str | None = "write-secret", dagster: ReplayingDagster | None = None
) -> Iterator[str]:
    server = TrackerHttpServer(
        engine,
        TrackerView("host:1", lambda: None, dict),
        ListenAddress("127.0.0.1", 0, "read-secret", write_token),
        address_file=home / "run" / "tracker.url",
        content=PageContent(
            replay_dagster=None if dagster is None else ReplayDagster(dagster.url, "http://dagster.example:3000")
        ),
    )
    with served(server) as url:
        yield url


@pytest.fixture
def log(connection: sa.Connection) -> Log:
    made = make_log(connection, receivers=2)
    apply_pipeline(
        connection,
        name="words",
        declaration={"max_attempts": 1, "streams": ["lines"], "outputs": {"counts": {"inputs": ["lines"]}}},
        stream_ids=[made.stream_id],
        interval=INTERVAL,
    )
    return made


@pytest.fixture
def url(engine: sa.Engine, home: Path, log: Log, dagster: ReplayingDagster) -> Iterator[str]:
    with serving(engine, home, dagster=dagster) as served:
        yield served


def wanted(log: Log) -> list[DesiredState]:
    return [receiver.desired_state for receiver in placements(log.connection)]


# -- who may ---------------------------------------------------------------------------------------------------------


def test_without_a_write_token_nothing_is_changed_even_from_this_machine(
    engine: sa.Engine, home: Path, log: Log
) -> None:
    with serving(engine, home, write_token=None) as url:
        for token in ("Bearer read-secret", "Bearer write-secret", "Bearer None", "Bearer "):
            refused = post(url, PAUSE, Authorization=token)
            assert (refused.status, "set FOREBAY_TRACKER_WRITE_TOKEN" in refused.json["error"]) == (403, True)
    assert wanted(log) == [DesiredState.RUNNING] * 2


@pytest.mark.parametrize(
    ("headers", "status", "said"),
    [
        ({"Authorization": ""}, 401, "FOREBAY_TRACKER_WRITE_TOKEN"),
        ({"Authorization": "Bearer read-secret"}, 401, "FOREBAY_TRACKER_WRITE_TOKEN"),
        ({"Authorization": "Bearer write-secret "[:-2]}, 401, "FOREBAY_TRACKER_WRITE_TOKEN"),
        ({"Content-Type": ""}, 415, "application/json"),
        ({"Content-Type": "text/plain"}, 415, "application/json"),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415, "application/json"),
        ({"Content-Type": "application/json; boundary=x"}, 415, "application/json"),
        ({"Origin": "https://evil.example"}, 403, "Origin"),
        ({"Origin": "null"}, 403, "Origin"),
        ({"Sec-Fetch-Site": "cross-site"}, 403, "Sec-Fetch-Site"),
        ({"Sec-Fetch-Site": "same-site"}, 403, "Sec-Fetch-Site"),
    ],
)
def test_only_a_program_with_the_write_token_changes_something(
    url: str, log: Log, dagster: ReplayingDagster, headers: dict[str, str], status: int, said: str
) -> None:
    for path in (PAUSE, "/api/v1/streams/lines/receivers/stop", REPLAY):
        refused = post(url, path, b"{}", **headers)
        assert (refused.status, said in refused.json["error"]) == (status, True), refused.text
    assert wanted(log) == [DesiredState.RUNNING] * 2
    assert dagster.launched == []


def test_the_cookie_and_the_link_of_a_browser_change_nothing(url: str, log: Log) -> None:
    request = urllib.request.Request(f"{url}/status?token=read-secret")
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    with opener.open(request, timeout=30) as page:
        assert page.status == 200
    change = urllib.request.Request(
        f"{url}{PAUSE}?token=write-secret", data=b"{}", headers={"Content-Type": "application/json"}
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        opener.open(change, timeout=30)
    refused.value.close()
    assert refused.value.code == 401
    assert wanted(log) == [DesiredState.RUNNING] * 2


def test_the_write_token_reads_too_and_no_other_path_or_method_writes(url: str) -> None:
    request = urllib.request.Request(f"{url}/api/v1/applications", headers=WRITE)
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 200
    for path in ("/status", "/metrics", "/api/v1/applications", "/health"):
        assert post(url, path).status == 405, path
    for method in ("GET", "PUT", "DELETE"):
        refused = post(url, PAUSE, method=method)
        assert (refused.status, refused.headers["allow"]) == (405, "POST"), method
    assert post(url, "/api/v1/streams/lines/receivers/1/explode").status == 404


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"[]", 400, "no JSON object"),
        (b"{", 400, "no JSON"),
        (b"\xff", 400, "no JSON"),
        (b"[" * 60_000, 400, "no JSON"),
        (b'{"force": true}', 400, "force"),
        (b" " * 70_000, 413, "65,536"),
    ],
)
def test_a_body_that_is_not_understood_is_refused(url: str, log: Log, body: bytes, status: int, said: str) -> None:
    refused = post(url, PAUSE, body)
    assert (refused.status, said in refused.json["error"]) == (status, True), refused.text
    assert wanted(log) == [DesiredState.RUNNING] * 2


# -- receivers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "desired"),
    [("pause", DesiredState.PAUSED), ("stop", DesiredState.STOPPED), ("start", DesiredState.RUNNING)],
)
def test_one_receiver_or_all_of_a_stream_are_paused_stopped_and_started(
    url: str, log: Log, verb: str, desired: DesiredState
) -> None:
    for _ in range(2):
        answer = post(url, f"/api/v1/streams/lines/receivers/1/{verb}", b"{}")
        [receiver] = answer.json["receivers"]
        assert (answer.status, receiver["receiver"], receiver["desiredState"]) == (200, "lines/1", desired)
        assert wanted(log) == [desired, DesiredState.RUNNING]
    answer = post(url, f"/api/v1/streams/lines/receivers/{verb}")
    assert [receiver["desiredState"] for receiver in answer.json["receivers"]] == [desired] * 2
    assert wanted(log) == [desired] * 2


def test_a_restart_is_an_event_and_is_not_repeated_before_the_receiver_is_placed(url: str, log: Log) -> None:
    def restarts() -> list[str]:
        return [
            event.message for event in newest_events(log.connection, limit=100) if event.kind == "receiver_restarted"
        ]

    log.connection.exec_driver_sql("UPDATE forebay.receivers SET state = 'FAILED' WHERE ordinal = 1")
    for _ in range(2):
        answer = post(url, "/api/v1/streams/lines/receivers/1/restart")
        assert answer.json["receivers"][0]["state"] == ReceiverState.INACTIVE
        assert restarts() == ["restarted over HTTP"]
    # Once it runs, a person may want it again.
    log.connection.exec_driver_sql("UPDATE forebay.receivers SET state = 'ACTIVE' WHERE ordinal = 1")
    assert post(url, "/api/v1/streams/lines/receivers/1/restart").status == 200
    assert len(restarts()) == 2


def test_of_receivers_that_can_not_all_be_changed_none_is(url: str, log: Log) -> None:
    def seen() -> list[tuple[str, DesiredState, int]]:
        return [(one.state, one.desired_state, one.assignment) for one in placements(log.connection)]

    execute = log.connection.exec_driver_sql
    execute("UPDATE forebay.receivers SET state = 'ACTIVE'")
    post(url, "/api/v1/streams/lines/receivers/2/stop")
    before = seen()
    refused = post(url, "/api/v1/streams/lines/receivers/restart")
    assert (refused.status, "receiver lines/2" in refused.json["error"], seen()) == (409, True, before)
    execute("UPDATE forebay.receivers SET desired_before_stop = 'running' WHERE ordinal = 2")
    refused = post(url, "/api/v1/streams/lines/receivers/pause")
    assert (refused.status, "receiver lines/2" in refused.json["error"], seen()) == (409, True, before)


def test_a_restart_leaves_those_alone_that_wait_or_start(url: str, log: Log) -> None:
    execute = log.connection.exec_driver_sql
    execute("UPDATE forebay.receivers SET state = CASE ordinal WHEN 1 THEN 'SCHEDULED' ELSE 'ACTIVE' END")
    before = [one.assignment for one in placements(log.connection)]
    answer = post(url, "/api/v1/streams/lines/receivers/restart")
    assert [one["state"] for one in answer.json["receivers"]] == ["SCHEDULED", "INACTIVE"]
    assert [one.assignment for one in placements(log.connection)] == [before[0], before[1] + 1]


def test_what_is_stopped_or_unknown_is_refused_by_name(url: str, log: Log) -> None:
    post(url, "/api/v1/streams/lines/receivers/1/stop")
    refused = post(url, "/api/v1/streams/lines/receivers/1/restart")
    assert (refused.status, "receivers start" in refused.json["error"]) == (409, True)
    log.connection.exec_driver_sql("UPDATE forebay.receivers SET desired_before_stop = 'running' WHERE ordinal = 1")
    refused = post(url, "/api/v1/streams/lines/receivers/1/start")
    assert (refused.status, "forebay start" in refused.json["error"]) == (409, True)
    for path in ("/api/v1/streams/other/receivers/pause", "/api/v1/streams/lines/receivers/7/pause"):
        refused = post(url, path)
        assert (refused.status, "receiver" in refused.json["error"]) == (404, True)


def test_without_a_driver_log_the_answer_says_so(home: Path) -> None:
    engine = sa.create_engine("postgresql+psycopg2://127.0.0.1:1/none")
    with serving(engine, home) as url:
        refused = post(url, PAUSE)
        assert (refused.status, "driver log does not answer" in refused.json["error"]) == (503, True)
    engine.dispose()


# -- replay ----------------------------------------------------------------------------------------------------------


def finish(log: Log) -> None:
    """Let the batch at T1 be quarantined, with a block."""
    log.add_at(log.receiver_ids[0], NOON)
    log.tracker.allocate_blocks_to_batch(T1)
    log.end_batch(T1, fails=True)


def test_a_replay_is_launched_once_until_its_run_is_over(url: str, log: Log, dagster: ReplayingDagster) -> None:
    finish(log)
    first = post(url, REPLAY, b'{"outputs": ["counts"], "failedOutputsOnly": true}')
    assert first.status == 202, first.text
    assert first.json == {"runId": "run1", "run": "http://dagster.example:3000/runs/run1", "isNew": True}
    [params] = dagster.launched
    assert params["selector"]["jobName"] == "words_replay"
    # Nothing follows it: the batch sensor launches it again if its process is lost.
    assert {"key": AGAIN_TAG, "value": "once"} in params["executionMetadata"]["tags"]
    assert params["runConfigData"]["ops"]["words__replay"]["config"] == {
        "from_time": T1.isoformat(),
        "to_time": T1.isoformat(),
        "outputs": ["counts"],
        "failed_outputs_only": True,
        "quarantined": False,
    }
    again = post(url, REPLAY, b'{"failedOutputsOnly": true, "outputs": ["counts"]}')
    assert (again.json["runId"], again.json["isNew"]) == ("run1", False)
    # Another request is another replay.
    assert post(url, REPLAY).json["runId"] == "run2"
    dagster.is_running = False
    assert post(url, REPLAY).json["isNew"] is True


def test_a_replay_with_a_key_is_launched_once_also_after_its_run_has_ended(
    url: str, log: Log, dagster: ReplayingDagster
) -> None:
    finish(log)
    key = {"Idempotency-Key": "order 7"}
    assert post(url, REPLAY, b'{"outputs": ["counts"]}', **key).json["isNew"] is True
    dagster.is_running = False
    again = post(url, REPLAY, b'{"outputs": ["counts"]}', **{"Idempotency-Key": '"order 7"'})
    assert (again.status, again.json["runId"], again.json["isNew"]) == (202, "run1", False)
    other = post(url, REPLAY, b"", **key)
    assert (other.status, "run run1" in other.json["error"], "new key" in other.json["error"]) == (409, True, True)
    assert post(url, REPLAY, b'{"outputs": ["counts"]}', **{"Idempotency-Key": "order 8"}).json["runId"] == "run2"
    for wrong in ("x" * 256, "caf\xe9", '""'):
        refused = post(url, REPLAY, b"", **{"Idempotency-Key": wrong})
        assert (refused.status, "Idempotency-Key" in refused.json["error"]) == (400, True)
    assert len(dagster.launched) == 2


def test_a_replay_forward_is_launched_unless_another_one_is_unfinished(
    engine: sa.Engine, connection: sa.Connection, home: Path, dagster: ReplayingDagster
) -> None:
    stated = make_stated_log(connection)
    stated.run(1)
    stated.run(2)
    with serving(engine, home, dagster=dagster) as url:
        first = post(url, REPLAY, b'{"forward": true}')
        assert (first.status, first.json["isNew"]) == (202, True), first.text
        assert post(url, REPLAY, b'{"outputs": ["totals"], "forward": true}').json["runId"] == "run1"
        [params] = dagster.launched
        config = params["runConfigData"]["ops"]["words__replay"]["config"]
        assert (config["from_time"], config["outputs"], config["forward"]) == (T1.isoformat(), ["totals"], True)
        dagster.is_running = False
        replay = begin_state_replay(connection, **stated.where, from_time=T1)
        # As after the end of its run's process: another run goes on with it.
        assert post(url, REPLAY, b'{"forward": true}').json["runId"] == "run2"
        stop_state_replay(connection, replay)
        refused = post(url, REPLAY, b'{"forward": true}')
        assert (refused.status, "forebay state resume words totals" in refused.json["error"]) == (409, True)
    assert len(dagster.launched) == 2


def test_a_replay_does_not_wait_for_long_while_another_launch_hangs(
    url: str, log: Log, dagster: ReplayingDagster, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(log)
    monkeypatch.setattr(http_writes, "_WAIT_SECONDS", 0.2)
    dagster.goes_on.clear()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(post, url, REPLAY)
        assert dagster.launching.wait(30)
        refused = post(url, REPLAY, b'{"outputs": ["counts"]}')
        assert (refused.status, refused.headers["retry-after"]) == (503, "10")
        assert "nothing was done" in refused.json["error"]
        # Others are answered meanwhile.
        assert post(url, PAUSE).status == 200
        dagster.goes_on.set()
        assert first.result(30).status == 202
    assert len(dagster.launched) == 1
    assert post(url, REPLAY, b'{"outputs": ["counts"]}').json["isNew"] is True


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"outputs": ["nope"]}', "no output 'nope'"),
        (b'{"outputs": "counts"}', "no list"),
        (b'{"outputs": [1]}', "no list"),
        (b'{"failedOutputsOnly": 1}', "not true or false"),
        (b'{"forward": "yes"}', "forward: 'yes' is not true or false"),
        (b'{"forward": true, "failedOutputsOnly": true}', "without failedOutputsOnly"),
        (b'{"forward": true}', "has no output with a state"),
        (b'{"output": ["counts"]}', "outputs, failedOutputsOnly, forward"),
    ],
)
def test_a_replay_that_is_not_understood_is_refused_before_dagster_is_asked(
    url: str, log: Log, dagster: ReplayingDagster, body: bytes, said: str
) -> None:
    finish(log)
    refused = post(url, REPLAY, body)
    assert (refused.status, said in refused.json["error"]) == (400, True), refused.text
    assert dagster.launched == []


def test_a_batch_that_is_unknown_or_not_finished_is_not_replayed(url: str, log: Log, dagster: ReplayingDagster) -> None:
    for path in (REPLAY, REPLAY.replace("words", "other"), REPLAY.replace("/replay", "9/replay")):
        assert post(url, path).status == 404, path
    log.add_at(log.receiver_ids[0], NOON)
    log.tracker.allocate_blocks_to_batch(T1)
    refused = post(url, REPLAY)
    assert (refused.status, "COMPLETED or QUARANTINED" in refused.json["error"]) == (409, True)
    assert dagster.launched == []


def test_a_replay_waits_for_a_code_server_that_restarts(
    url: str, log: Log, dagster: ReplayingDagster, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(log)
    dagster.without_code = 2
    assert post(url, REPLAY).json["isNew"] is True
    assert (dagster.without_code, len(dagster.launched)) == (0, 1)
    monkeypatch.setattr(http_writes, "_CODE_SECONDS", 0.0)
    dagster.without_code = 2
    refused = post(url, REPLAY, b'{"outputs": ["counts"]}')
    assert (refused.status, refused.headers["retry-after"]) == (503, "10")
    assert "Nothing was done: send the request again" in refused.json["error"]
    assert len(dagster.launched) == 1


def test_while_a_replay_waits_for_the_code_server_another_is_launched_and_of_one_key_no_second(
    url: str, log: Log, dagster: ReplayingDagster, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(log)
    monkeypatch.setattr(http_writes, "_WAIT_SECONDS", 0.2)
    dagster.without_code = 3
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda _: post(url, REPLAY, b"", **{"Idempotency-Key": "order 7"}), range(2)))
    assert [answer.status for answer in answers] == [202, 202]
    assert sorted(answer.json["isNew"] for answer in answers) == [False, True]
    assert (dagster.without_code, len(dagster.launched)) == (0, 1)


def test_without_dagster_or_its_answer_the_way_out_is_named(
    engine: sa.Engine, home: Path, log: Log, dagster: ReplayingDagster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_writes, "_CODE_SECONDS", 0.0)
    finish(log)
    with serving(engine, home) as url:
        refused = post(url, REPLAY)
        assert refused.status == 501
        assert "forebay batches replay words 2026-01-01T12:00:10Z" in refused.json["error"]
    with serving(engine, home, dagster=dagster) as url:
        dagster.sensors = []
        refused = post(url, REPLAY)
        assert (refused.status, "has no pipeline 'words'" in refused.json["error"]) == (503, True)
        dagster.answers = False
        refused = post(url, REPLAY)
        assert (refused.status, "again" in refused.json["error"]) == (504, True)
