"""Test `forebay stop`, `forebay start` and `forebay receivers` on a real driver log: writes, output and refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from forebay.cli.commands import stop as stop_module
from forebay.cli.main import app
from forebay.cli.services.supervisor_lock import take_lock
from forebay.cli.terminal.console import Console
from orchestration.declarations.project_code import CodeCopies
from tests.support.driver_log.log import INTERVAL, NOON, Log, make_log
from tracker_store.batches.pipeline_states import advance_stops, stop_progress
from tracker_store.batches.pipelines import get_pipeline
from tracker_store.receivers.leadership import read_leadership, take_leadership
from tracker_store.receivers.receivers import placements
from tracker_store.schema.states import DesiredState, PipelineState, ReceiverState

if TYPE_CHECKING:
    from pathlib import Path

    from typer.testing import Result


@pytest.fixture
def log(connection: sa.Connection, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Log:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    monkeypatch.setenv("FOREBAY_HOME", str(tmp_path))
    return make_log(connection, receivers=2)


def forebay(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def said(result: Result) -> str:
    return " ".join(result.output.split())


def lead(log: Log) -> int:
    term = take_leadership(log.connection, seen=read_leadership(log.connection), holder="me")
    assert term is not None
    return term


def state(log: Log) -> PipelineState:
    return get_pipeline(log.connection, "words").state


def test_k12_a_time_out_says_what_is_open_and_leaves_it_stopping(log: Log) -> None:
    lead(log)
    log.add_at(log.receiver_ids[0], NOON)
    log.connection.execute(sa.text("UPDATE forebay.receivers SET state = 'ACTIVE' WHERE ordinal = 2"))
    result = forebay("stop", "--timeout", "600ms")
    assert result.exit_code == 1
    assert "words is still stopping; open: receivers: lines/2 ACTIVE; waiting: 10 records in 2 blocks" in said(result)
    assert "Not stopped within 0.6 s. It goes on stopping" in said(result)
    assert state(log) is PipelineState.STOPPING
    # It is requested for the whole system, which `forebay up` checks.
    assert log.connection.execute(sa.text("SELECT ends_system FROM forebay.pipelines")).scalar_one()


def test_without_a_tracker_it_reports_that_no_tracker_completes_the_stop(log: Log) -> None:
    result = forebay("stop", "--pipeline", "words", "--timeout", "0s")
    assert result.exit_code == 0, "only the request was wanted"
    assert "No tracker leads" in said(result)
    assert state(log) is PipelineState.STOPPING


def test_a_tracker_that_is_silent_is_told_while_the_stop_waits(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    lead(log)
    monkeypatch.setattr(stop_module, "LEADER_SECONDS", 0.3)
    log.connection.execute(sa.text("UPDATE forebay.receivers SET state = 'ACTIVE' WHERE ordinal = 2"))
    lines = forebay("stop", "--timeout", "900ms").output.splitlines()
    assert [line for line in lines if "No tracker leads" in line] == [
        f"{stop_module.NOBODY_LEADS} This command waits for it."
    ]
    # Before the command gives up.
    assert lines[1].startswith("No tracker leads")


@pytest.mark.parametrize(
    ("declared", "sequence", "is_said"),
    [
        pytest.param({}, 1, True, id="records wait, and no code has it"),
        pytest.param({}, 0, False, id="nothing waits for code"),
        pytest.param({"words": {}}, 1, False, id="the code has it"),
    ],
)
def test_a_stop_that_waits_for_code_that_nobody_has_says_so_at_once(
    log: Log, tmp_path: Path, declared: dict[str, object], sequence: int, is_said: bool
) -> None:
    lead(log)
    if sequence:
        log.add_at(log.receiver_ids[0], NOON)
    copies = CodeCopies(tmp_path)
    copies.of("shop")
    copies.declares({"pipelines": declared, "streams": {}})
    with take_lock(tmp_path):
        words = said(forebay("stop", "--pipeline", "words", "--timeout", "300ms"))
    assert ("words is not in the code that forebay up runs here" in words) is is_said
    assert words.count("forebay pipelines remove words") == bool(sequence), "one way out, once"
    assert "waits without end" not in words, "it waits for 300 ms"


@pytest.mark.parametrize("fails", [True, False])
def test_a_stop_that_waits_for_a_target_does_not_ask_for_code(log: Log, fails: bool) -> None:
    lead(log)
    log.add_at(log.receiver_ids[0], NOON)
    log.tracker.allocate_blocks_to_batch(NOON + INTERVAL)
    if fails:
        log.connection.execute(sa.text("UPDATE forebay.batches SET state = 'BLOCKED', reason = 'the target is down'"))
    words = said(forebay("stop", "--pipeline", "words", "--timeout", "0s"))
    assert ("the target is down" in words, "does its module declare words" in words) == (fails, not fails)


def test_a_batch_that_nothing_launches_is_told_when_a_stop_gives_up(log: Log) -> None:
    lead(log)
    log.add_at(log.receiver_ids[0], NOON)
    log.tracker.allocate_blocks_to_batch(NOON + INTERVAL)
    words = said(forebay("stop", "--pipeline", "words", "--timeout", "300ms"))
    assert "ALLOCATED" in words
    assert "No process runs a batch of it: does Dagster run, and does its module declare words?" in words


def test_a_number_that_changes_all_the_time_is_not_a_line_each_time(
    log: Log, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [row] = stop_progress(log.connection, ["words"])
    stopping = replace(row, state=PipelineState.STOPPING)
    tell = stop_module._progress_printer(Console(width=200))
    for records in (1, 20, 3_000):
        tell(replace(stopping, waiting_records=records))
    tell(stopping)
    monkeypatch.setattr(stop_module, "NUMBERS_SECONDS", 0.0)
    tell(replace(stopping, waiting_records=4))
    tell(replace(stopping, waiting_records=5))
    assert [line.partition("waiting: ")[2].partition(" ")[0] for line in capsys.readouterr().out.splitlines()] == [
        "1",
        "",
        "4",
        "5",
    ]


def test_a_stopped_pipeline_is_reported_and_started_again(log: Log) -> None:
    term = lead(log)
    forebay("stop", "--timeout", "0s")
    advance_stops(log.connection, term=term)
    result = forebay("stop", "--json")
    assert result.exit_code == 0
    answer = json.loads(result.stdout)
    assert (answer["stopped"], answer["ended"]) == (True, True)
    # As while another pipeline reads the stream.
    log.add_at(log.receiver_ids[0], NOON)
    assert "words: 10 records came after it was stopped" in said(forebay("stop"))
    assert answer["pipelines"][0]["state"] == "STOPPED"
    assert json.loads(forebay("start", "--json").stdout) == {"started": ["words"]}
    assert state(log) is PipelineState.RUNNING
    assert "Nothing to start" in said(forebay("start"))


def test_an_unknown_or_impossible_request_is_named(log: Log) -> None:
    assert state(log) is PipelineState.RUNNING
    for arguments, words in (
        (("stop", "--pipeline", "word"), "pipeline 'word' is not in the driver log"),
        (("start", "--pipeline", "word"), "pipeline 'word' is not in the driver log"),
        (("stop", "--timeout", "soon"), "soon"),
        (
            ("receivers", "restart", "line"),
            "receiver 'line' is not in the driver log, which has lines. Did you mean lines?",
        ),
        (("receivers", "stop", "lines/3"), "which has lines/1, lines/2. Did you mean lines/2?"),
    ):
        result = forebay(*arguments)
        assert result.exit_code != 0
        assert words in said(result)
    assert state(log) is PipelineState.RUNNING


def test_receivers_are_listed_with_their_reason_and_their_rate(log: Log) -> None:
    log.connection.execute(
        sa.text("UPDATE forebay.receivers SET state = 'FAILED', reason = 'no such host', rate_limit = 1500")
    )
    text = said(forebay("receivers"))
    for word in ("lines/1", "lines/2", "FAILED", "running", "1,500.0", "lines/1 and 1 more: no such host"):
        assert word in text
    rows = json.loads(forebay("receivers", "--json").stdout)["receivers"]
    assert [(row["stream"], row["ordinal"], row["state"], row["rate_limit"]) for row in rows] == [
        ("lines", 1, "FAILED", 1500.0),
        ("lines", 2, "FAILED", 1500.0),
    ]


def test_k04_a_failed_receiver_is_restarted_by_its_name(log: Log) -> None:
    log.connection.execute(sa.text("UPDATE forebay.receivers SET state = 'FAILED'"))
    result = forebay("receivers", "restart", "lines/2")
    assert result.exit_code == 0
    assert "lines/2 (it was FAILED) will be started again." in said(result)
    assert [(row.state, row.assignment) for row in placements(log.connection)] == [
        (ReceiverState.FAILED, 0),
        (ReceiverState.INACTIVE, 1),
    ]
    forebay("receivers", "stop", "lines/2")
    refused = forebay("receivers", "restart", "lines/2")
    assert refused.exit_code == 1
    assert "receiver lines/2. It is stopped, and would not start" in said(refused)


def test_what_was_done_to_receivers_is_said_as_json(log: Log) -> None:
    log.connection.execute(sa.text("UPDATE forebay.receivers SET state = 'FAILED' WHERE ordinal = 2"))
    restarted = forebay("receivers", "restart", "lines/2", "--json")
    assert json.loads(restarted.stdout) == {"restarted": [{"stream": "lines", "ordinal": 2, "state_before": "FAILED"}]}
    assert "will be started again" in restarted.stderr
    for verb, wanted in (("pause", "paused"), ("stop", "stopped"), ("start", "running")):
        done = forebay("receivers", verb, "lines", "--json")
        assert json.loads(done.stdout)["receivers"] == [
            {"stream": "lines", "ordinal": ordinal, "state": "INACTIVE", "desired_state": wanted} for ordinal in (1, 2)
        ]
        assert {row.desired_state for row in placements(log.connection)} == {wanted}
    refused = forebay("receivers", "restart", "missing", "--json")
    assert (refused.exit_code, refused.stdout) == (1, "")


def test_the_desired_state_of_a_streams_receivers_can_be_changed_and_changed_back(log: Log) -> None:
    for verb, wanted in (
        ("pause", DesiredState.PAUSED),
        ("stop", DesiredState.STOPPED),
        ("start", DesiredState.RUNNING),
    ):
        assert forebay("receivers", verb, "lines").exit_code == 0
        assert [row.desired_state for row in placements(log.connection)] == [wanted, wanted]
    term = lead(log)
    forebay("stop", "--timeout", "0s")
    advance_stops(log.connection, term=term)
    refused = forebay("receivers", "start", "lines/1")
    assert refused.exit_code == 1
    assert "`forebay start`, which lets both run" in said(refused)
