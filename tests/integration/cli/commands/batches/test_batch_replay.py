"""Test `forebay batches replay` with a running Dagster: it launches the replay job, and follows the driver log."""

from __future__ import annotations

import json
import threading
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from forebay.cli.commands.batches import replay_following, replay_launching
from forebay.cli.instance import running_dagster
from forebay.cli.instance.dagster_home import URL_FILE
from forebay.cli.instance.running_dagster import dagster_url
from forebay.cli.main import app
from orchestration.declarations.settings import Settings
from orchestration.replays import replay_run
from tests.support.driver_log.log import INTERVAL, NOON, Log, make_log
from tests.support.polling import joined
from tracker_store.batches import batches, outputs
from tracker_store.batches.pipelines import apply_pipeline
from tracker_store.connection.engine import connect
from tracker_store.receivers.processes import register_process
from tracker_store.schema.states import AttemptFailure, ProcessKind

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

T1, T2, T3 = (NOON + n * INTERVAL for n in (1, 2, 3))
SENSOR = {
    "name": "words_batches",
    "tags": [{"key": "forebay/declaration", "value": "abc"}],
    "sensorState": {"status": "RUNNING"},
}


class Dagster(ThreadingHTTPServer):
    """A webserver whose launched run replays the first batch, fails the second and is refused the third."""

    def __init__(self, engine: sa.Engine, log: Log) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.engine = engine
        self.log = log
        self.launched: list[dict[str, Any]] = []
        self.sensors = [SENSOR]
        # Whether the answer to a launch, and each answer about a run, is lost.
        self.loses_launches = False
        self.loses_statuses = False
        self.makes_runs = True
        # What the launch answers, one after the other, while the code server restarts: type, message, status of a run.
        self.restarting: list[tuple[str, str, str]] = []
        self.failed = ""
        # How many runs lose their process, with the code server that is its parent.
        self.loses_runs = 0
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if "BatchSensors" in request["query"]:
            node = {"name": "__repository__", "location": {"name": "forebay"}, "sensors": self.sensors}
            return {"repositoriesOrError": {"__typename": "RepositoryConnection", "nodes": [node]}}
        if "RunStatus" in request["query"]:
            return {"runOrError": {"__typename": "Run", "status": "FAILURE"}}
        if "RunsWithTags" in request["query"]:
            wanted = request["variables"]["tags"]
            run = {"runId": "r1", "status": "STARTED", "stats": {"startTime": 1.0}}
            runs = [run for params in self.launched if has_tags(params, wanted)]
            if self.failed:
                runs = [{"runId": "r0", "status": self.failed, "stats": {"startTime": None}}]
            return {"runsOrError": {"__typename": "Runs", "results": runs}}
        if not self.makes_runs:
            return {}
        if "EndRun" in request["query"] or self.restarting:
            return self.without_code(request["query"])
        self.failed = ""
        self.launched.append(request["variables"]["params"])
        run_id = self.lose_run() if self.loses_runs else self.replay()
        return {"launchRun": {"__typename": "LaunchRunSuccess", "run": {"runId": run_id}}}

    def replay(self) -> str:
        """Replay the first batch in the run r1, and fail the second."""
        with connect(self.engine) as connection:
            process = register_process(connection, kind=ProcessKind.BATCH_RUN, name="n", host="h", pid=1)
            for time in (T1, T2):
                batch: dict[str, Any] = {"pipeline_id": self.log.pipeline_id, "batch_time": time}
                number = batches.claim_replay(connection, **batch, run_id="r1", process_id=process, reach=timedelta(0))
                if time == T2:
                    batches.fail_attempt(
                        connection,
                        **batch,
                        attempt=number,
                        run_id="r1",
                        error="no luck",
                        max_attempts=1,
                        pauses=[timedelta(0)],
                    )
                    continue
                outputs.commit_output(connection, **batch, attempt=number, output="counts", location="/2", rows=1)
                batches.complete_replay(connection, **batch, attempt=number, outputs=["counts"], due=["counts"])
        return "r1"

    def without_code(self, query: str) -> dict[str, Any]:
        """Return what Dagster answers to a launch while its code server restarts, or to the end of what it made."""
        if "EndRun" in query:
            self.failed = "CANCELED"
            return {"terminateRun": {"__typename": "TerminateRunSuccess"}}
        kind, message, status = self.restarting.pop(0)
        self.failed = status or self.failed
        return {"launchRun": {"__typename": kind, "message": message}}

    def lose_run(self) -> str:
        """Let a run end with its process, in its first batch."""
        self.loses_runs -= 1
        run_id = f"lost{self.loses_runs}"
        with connect(self.engine) as connection:
            process = register_process(connection, kind=ProcessKind.BATCH_RUN, name="n", host="h", pid=1)
            batch: dict[str, Any] = {"pipeline_id": self.log.pipeline_id, "batch_time": T1}
            number = batches.claim_replay(connection, **batch, run_id=run_id, process_id=process, reach=timedelta(0))
            batches.fail_attempt(
                connection,
                **batch,
                attempt=number,
                run_id=run_id,
                error="its process ended",
                failure=AttemptFailure.LOST,
                max_attempts=1,
                pauses=[timedelta(0)],
            )
        return run_id

    def loses(self, query: str) -> bool:
        return (self.loses_launches and "LaunchBatch" in query) or (self.loses_statuses and "RunStatus" in query)


def has_tags(params: dict[str, Any], wanted: list[dict[str, str]]) -> bool:
    return all(tag in params["executionMetadata"]["tags"] for tag in wanted)


class Handler(BaseHTTPRequestHandler):
    server: Dagster

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(request["query"])
        data = self.server.answer(request)
        if self.server.loses(request["query"]):
            self.close_connection = True
            return
        body = json.dumps({"data": data}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def dagster(engine: sa.Engine, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dagster]:
    """Yield a Dagster with three completed batches."""
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    monkeypatch.setenv("FOREBAY_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    with connect(engine) as connection:
        log = make_log(connection)
        declare = sa.text("UPDATE forebay.pipelines SET declaration = declaration || CAST(:outputs AS jsonb)")
        connection.execute(declare, {"outputs": '{"outputs": {"counts": {}}}'})
        process = register_process(connection, kind=ProcessKind.BATCH_RUN, name="n", host="h", pid=1)
        for time in (T1, T2, T3):
            log.add_at(log.receiver_ids[0], time - timedelta(seconds=1))
            log.tracker.allocate_blocks_to_batch(time)
            batch: dict[str, Any] = {"pipeline_id": log.pipeline_id, "batch_time": time}
            batches.claim_attempt(connection, **batch, attempt=1, run_id="run", process_id=process)
            batches.complete_batch(connection, **batch, attempt=1, outputs=[])
        # Declared once the batches are complete, so that they need no commit.
        apply_pipeline(
            connection,
            name="words",
            declaration={"max_attempts": 3, "streams": ["lines"], "outputs": {"counts": {"inputs": ["lines"]}}},
            stream_ids=[log.stream_id],
            interval=INTERVAL,
        )
        server = Dagster(engine, log)
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            monkeypatch.setenv("FOREBAY_DAGSTER_URL", server.url)
            yield server
        finally:
            server.shutdown()
            joined(thread)
            server.server_close()


def test_it_launches_the_replay_job_and_reports_every_batch(dagster: Dagster) -> None:
    arguments = ["batches", "replay", "words", "--from", T1.isoformat(), "--to", T3.isoformat(), "--output", "counts"]
    answer = CliRunner().invoke(app, [*arguments, "--json"])
    assert answer.exit_code == 1
    rows = json.loads(answer.stdout)["batches"]
    assert [(row["batch_time"], row["outcome"]) for row in rows] == [
        (T1.isoformat(), "replayed"),
        (T2.isoformat(), "failed"),
        (T3.isoformat(), "refused"),
    ]
    assert rows[1]["detail"] == "no luck"
    assert f"{dagster.url}/runs/r1" in rows[2]["detail"]
    [params] = dagster.launched
    assert params["selector"]["jobName"] == "words_replay"
    assert params["runConfigData"] == {
        "ops": {
            "words__replay": {
                "config": {
                    "from_time": T1.isoformat(),
                    "to_time": T3.isoformat(),
                    "outputs": ["counts"],
                    "failed_outputs_only": False,
                    "quarantined": False,
                }
            }
        }
    }


def test_an_output_that_is_not_declared_is_refused_before_dagster_is_asked(dagster: Dagster) -> None:
    answer = CliRunner().invoke(app, ["batches", "replay", "words", "--output", "nope"])
    assert (answer.exit_code, "no output 'nope'" in answer.stdout) == (1, True)
    assert dagster.asked == []
    assert dagster.launched == []


def test_it_launches_the_replay_job_for_failed_outputs_only(dagster: Dagster) -> None:
    with connect(dagster.engine) as connection:
        # As if its attempts had been used up, with other outputs committed.
        connection.execute(sa.text("UPDATE forebay.batches SET state = 'QUARANTINED', completed_at = NULL"))
    arguments = ["batches", "replay", "words", "--from", T1.isoformat(), "--to", T3.isoformat()]
    CliRunner().invoke(app, [*arguments, "--failed-outputs-only", "--json"])
    [params] = dagster.launched
    assert params["runConfigData"]["ops"]["words__replay"]["config"]["failed_outputs_only"] is True


def test_all_quarantined_batches_are_chosen_and_no_other(dagster: Dagster) -> None:
    none = CliRunner().invoke(app, ["batches", "replay", "words", "--quarantined"])
    assert (none.exit_code, "no batch is quarantined" in none.stdout) == (1, True)
    with connect(dagster.engine) as connection:
        statement = "UPDATE forebay.batches SET state = 'QUARANTINED', completed_at = NULL WHERE batch_time <> :time"
        connection.execute(sa.text(statement), {"time": T2})
    answer = CliRunner().invoke(app, ["batches", "replay", "words", "--quarantined", "--json"])
    assert [row["batch_time"] for row in json.loads(answer.stdout)["batches"]] == [T1.isoformat(), T3.isoformat()]
    [params] = dagster.launched
    config = params["runConfigData"]["ops"]["words__replay"]["config"]
    assert (config["from_time"], config["to_time"], config["quarantined"]) == (T1.isoformat(), T3.isoformat(), True)


def test_an_unknown_pipeline_or_an_unreachable_dagster_is_reported_with_the_way_out(
    dagster: Dagster, monkeypatch: pytest.MonkeyPatch
) -> None:
    dagster.sensors = []
    monkeypatch.setattr(replay_launching, "CODE_SECONDS", 0.0)
    answer = CliRunner().invoke(app, ["batches", "replay", "words"])
    assert (answer.exit_code, "has no pipeline 'words'" in answer.stdout) == (1, True)
    monkeypatch.setenv("FOREBAY_DAGSTER_URL", "http://127.0.0.1:1")
    answer = CliRunner().invoke(app, ["batches", "replay", "words"])
    assert (answer.exit_code, "--local replays in this process" in answer.stdout) == (1, True)


def test_a_run_whose_launch_got_no_answer_is_found_and_followed(dagster: Dagster) -> None:
    dagster.loses_launches = True
    answer = CliRunner().invoke(app, ["batches", "replay", "words", T1.isoformat()])
    assert answer.exit_code == 0, answer.output
    assert "Dagster has not answered" in answer.output
    assert "may be a run, or not" not in answer.output
    assert f"Run r1: {dagster.url}/runs/r1" in answer.output
    assert "replayed: attempt 2" in answer.output
    assert len(dagster.launched) == 1


SHUTS_DOWN = "Tried to start a run on a server after telling it to shut down"
GONE = "dagster._core.errors.DagsterUserCodeUnreachableError: Could not reach user code server."


def test_a_code_server_that_restarts_is_waited_for(dagster: Dagster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check each moment of a restart: before a run is made, after it, and while the new code server loads the code."""
    monkeypatch.setattr(replay_run, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(replay_run, "RESTART_SECONDS", 0.01)
    dagster.restarting = [
        ("PythonError", f"DagsterLaunchFailedError: {SHUTS_DOWN}", "FAILURE"),
        ("PythonError", GONE, "FAILURE"),
        ("PythonError", GONE, "NOT_STARTED"),
        ("PythonError", GONE, ""),
        ("PipelineNotFoundError", "Could not find Pipeline forebay.__repository__.words_replay", ""),
    ]
    answer = CliRunner().invoke(app, ["batches", "replay", "words", T1.isoformat()])
    assert answer.exit_code == 0, answer.output
    assert answer.output.count("Dagster's code server has not loaded words: waiting for it") == 1
    assert len(dagster.launched) == 1
    assert dagster.restarting == []


def test_a_code_server_that_does_not_come_back_is_not_waited_for_without_end(
    dagster: Dagster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_launching, "CODE_SECONDS", 0.0)
    dagster.restarting = [("PythonError", GONE, "")] * 2
    answer = CliRunner().invoke(app, ["batches", "replay", "words", T1.isoformat()])
    assert (answer.exit_code, "could not start a run of it, also after 0 s" in answer.output) == (1, True)
    assert "UserCodeUnreachable" not in answer.output


@pytest.mark.parametrize(("lost", "outcome"), [(1, "replayed"), (2, "failed")])
def test_a_run_that_is_lost_with_the_code_server_is_launched_again_once(
    dagster: Dagster, lost: int, outcome: str
) -> None:
    dagster.loses_runs = lost
    answer = CliRunner().invoke(app, ["batches", "replay", "words", T1.isoformat(), "--json"])
    assert [row["outcome"] for row in json.loads(answer.stdout)["batches"]] == [outcome], answer.output
    assert len(dagster.launched) == 2
    assert answer.output.count("The run's process ended in the middle of batch") == 1


def test_a_run_that_was_not_started_for_another_reason_is_not_launched_again(dagster: Dagster) -> None:
    dagster.restarting = [("PythonError", "no cluster", "NOT_STARTED")]
    answer = CliRunner().invoke(app, ["batches", "replay", "words", T1.isoformat()])
    assert (answer.exit_code, "no cluster; its run r0 was not started" in answer.output) == (1, True)
    assert dagster.launched == []


def test_a_launch_that_made_no_run_says_so(dagster: Dagster, monkeypatch: pytest.MonkeyPatch) -> None:
    dagster.loses_launches = True
    dagster.makes_runs = False
    monkeypatch.setattr(replay_launching, "SEARCH_SECONDS", 0.0)
    answer = CliRunner().invoke(app, ["batches", "replay", "words", T1.isoformat()])
    assert answer.exit_code == 1
    assert "it has no run of this replay" in answer.output
    assert "forebay/replay_request=" in answer.output


def test_a_dagster_that_stops_answering_hides_nothing_that_was_done(dagster: Dagster) -> None:
    dagster.loses_statuses = True
    answer = CliRunner().invoke(app, ["batches", "replay", "words", T1.isoformat(), "--json"])
    assert answer.exit_code == 0, answer.output
    assert [row["outcome"] for row in json.loads(answer.stdout)["batches"]] == ["replayed"]


def test_a_batch_of_which_nothing_is_known_is_neither_replayed_nor_refused(
    dagster: Dagster, monkeypatch: pytest.MonkeyPatch
) -> None:
    dagster.loses_statuses = True
    monkeypatch.setattr(replay_following, "SILENT_SECONDS", 0.0)
    arguments = ["batches", "replay", "words", "--from", T1.isoformat(), "--to", T3.isoformat(), "--json"]
    answer = CliRunner().invoke(app, arguments)
    assert answer.exit_code == 1
    assert [row["outcome"] for row in json.loads(answer.stdout)["batches"]] == ["replayed", "failed", "unknown"]


def test_latest_is_a_quarantined_batch_too(dagster: Dagster, engine: sa.Engine) -> None:
    with connect(engine) as connection:
        statement = "UPDATE forebay.batches SET state = 'QUARANTINED', completed_at = NULL WHERE batch_time = :time"
        connection.execute(sa.text(statement), {"time": T3})
        connection.commit()
    for arguments in (["latest"], [], ["latest", "--quarantined"]):
        CliRunner().invoke(app, ["batches", "replay", "words", *arguments])
    configs = [launched["runConfigData"]["ops"]["words__replay"]["config"] for launched in dagster.launched]
    assert [config["from_time"] for config in configs] == [T3.isoformat(), T2.isoformat(), T3.isoformat()]


@pytest.mark.parametrize("named", [f"{T1:%Y-%m-%dT%H:%M:%SZ}", f"{T1:%Y-%m-%d %H:%M:%S}", "latest"])
def test_a_batch_is_named_as_other_commands_print_it(dagster: Dagster, named: str) -> None:
    CliRunner().invoke(app, ["batches", "replay", "words", named])
    [params] = dagster.launched
    expected = T3 if named == "latest" else T1
    assert params["runConfigData"]["ops"]["words__replay"]["config"]["from_time"] == expected.isoformat()


def test_the_running_system_of_this_home_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FOREBAY_DAGSTER_URL", raising=False)
    settings = Settings(home=tmp_path)
    assert dagster_url(settings) is None
    (tmp_path / "dagster").mkdir()
    (tmp_path / "dagster" / URL_FILE).write_text("http://127.0.0.1:3000", encoding="utf-8")
    # The file of an earlier run does not count.
    assert dagster_url(settings) is None
    monkeypatch.setattr(running_dagster, "lock_holder", lambda _: 1)
    assert dagster_url(settings) == "http://127.0.0.1:3000"
