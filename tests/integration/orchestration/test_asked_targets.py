"""Test that targets are asked who writes to them before outputs are applied, and that none keeps the others waiting."""

from __future__ import annotations

import threading
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from forebay import ConsoleSink, Pipeline, Stream
from forebay.cli.checks.findings import Health
from forebay.cli.checks.sink_checks import check_sink
from forebay.cli.commands import up
from forebay.cli.main import app
from forebay.cli.terminal.failures import CommandError
from forebay.sources import SocketText
from orchestration.declarations.apply import apply, difference
from orchestration.declarations.asked_targets import NO_STOP, ORDER, TargetAnswers, ask_targets
from orchestration.declarations.sink import Sink, TargetCheck, TargetMissingError, TargetUnavailableError
from orchestration.sinks.postgres.postgres import PostgresSink
from receiver_runtime.sources.fields.secret import EnvVar
from tests.support.driver_log.attempts import claim_batch, fail_batch
from tests.support.machine.held_ports import held_port
from tracker_store.batches import batches
from tracker_store.batches.launches import LaunchOutcome, take_launch
from tracker_store.batches.pipeline_states import stop_pipelines
from tracker_store.batches.pipelines import list_pipelines
from tracker_store.receivers.processes import register_process
from tracker_store.schema.states import ProcessKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from typer.testing import Result

    Invoke = Callable[[list[str], Pipeline], Result]

HELD = TargetCheck("failed", "the table is written by output 'old'", "Give it a table of its own.")


class AskedSink(ConsoleSink):
    """A sink whose target answers as a test says."""

    def __init__(self, answers: Callable[[], TargetCheck | None]) -> None:
        super().__init__()
        self.answers = answers

    def check_writer(self, pipeline: str, output: str) -> TargetCheck | None:
        return self.answers()


def declared(**sinks: Sink) -> Pipeline:
    lines = Stream("lines", SocketText(host="127.0.0.1", port=9999))
    pipeline = Pipeline("words", interval="10s")
    for name, sink in sinks.items():
        pipeline.output(inputs=[lines], sink=sink, name=name)(lambda lines: lines)
    return pipeline


def breaks() -> Never:
    raise RuntimeError("its client has a bug")


def test_each_answer_of_a_target_is_a_sentence_and_none_keeps_the_others_waiting(connection: sa.Connection) -> None:
    never = threading.Event()

    def hangs() -> None:
        never.wait(60)

    pipeline = declared(
        free=AskedSink(lambda: None),
        held=AskedSink(lambda: HELD),
        odd=AskedSink(breaks),
        away=AskedSink(lambda: TargetCheck("warning", "t: Connection refused", "")),
        hangs=AskedSink(hangs),
    )
    try:
        asked = ask_targets(connection, [pipeline], seconds=1.0)
    finally:
        never.set()
    where = "of pipeline 'words': its target was not asked who writes to it:"
    assert asked.refused == (
        "output 'held' of pipeline 'words': the table is written by output 'old'. Give it a table of its own.",
    )
    assert asked.unasked == (
        f"output 'odd' {where} RuntimeError: its client has a bug.",
        f"output 'hangs' {where} no answer within 1.0 s.",
        f"output 'away' {where} t: Connection refused.",
    )


def test_steps_are_asked_for_within_the_same_bound_and_only_of_sinks_that_changed(connection: sa.Connection) -> None:
    never = threading.Event()

    class ChangedSink(AskedSink):
        def step_after(self, before: Mapping[str, Any]) -> str | None:
            if self.rows == 1:
                raise TargetUnavailableError("t: if it has a key, drop that")
            return f"rows were {before['rows']}" if self.rows else str(never.wait(60))

    def changed(*rows: int) -> Pipeline:
        sinks = {f"o{number}": ChangedSink(lambda: None) for number in range(len(rows))}
        for sink, one in zip(sinks.values(), rows, strict=True):
            sink.rows = one
        return declared(**sinks)

    apply(connection, [changed(*[20] * 6)])
    try:
        pipeline = changed(20, 21, 1, *[0] * 3)
        asked = ask_targets(connection, [pipeline], seconds=1.0)
    finally:
        never.set()
    assert asked.steps == {pipeline.outputs["o1"]: "output 'o1' of pipeline 'words': rows were 20."}
    assert asked.unlooked[-1] == "output 'o2' of pipeline 'words': t: if it has a key, drop that."
    assert [said.endswith("no answer within 1.0 s.") for said in asked.unlooked] == [True] * 3 + [False]
    assert (asked.refused, asked.unasked) == ((), ())


def test_a_target_that_does_not_exist_is_looked_at_again_while_a_batch_may_create_it(connection: sa.Connection) -> None:
    meanwhile: Callable[[], object] = int

    class MissingSink(AskedSink):
        def step_after(self, before: Mapping[str, Any]) -> str | None:
            meanwhile()
            raise TargetMissingError("a batch may create it")

    sink = MissingSink(lambda: None)
    apply(connection, [declared(counts=sink)])
    sink.rows = 1
    [row] = list_pipelines(connection)
    at: dict[str, Any] = {"pipeline_id": row.pipeline_id, "batch_time": row.last_batch_time + row.interval}
    connection.execute(
        sa.text(
            "INSERT INTO forebay.batches (pipeline_id, batch_time, oldest_time, state, records, bytes, blocks) "
            "VALUES (:pipeline_id, :batch_time, :batch_time, 'ALLOCATED', 0, 0, 0)"
        ),
        at,
    )

    def launch() -> None:
        assert take_launch(connection, **at, attempt=1, launcher="sensor").outcome is LaunchOutcome.FIRST

    def unlooked() -> tuple[str, ...]:
        asked = ask_targets(connection, [declared(counts=sink)])
        assert (asked.steps, asked.refused) == ({}, ())
        assert asked.held == [f"{named} Apply again when that batch has ended." for _ in asked.unlooked]
        return asked.unlooked

    assert unlooked() == (), "it was not launched, and the version of this change runs it"
    named = "output 'counts' of pipeline 'words': a batch may create it."
    then = "when that batch has ended, this change can be used, or the statement that the table needs is named."
    said = (f"{named[:-1]}; {then}",)
    meanwhile = launch
    assert unlooked() == said, "launched meanwhile"
    meanwhile = int
    assert unlooked() == said
    claim_batch(connection, *at.values(), run_id="run")
    meanwhile = partial(fail_batch, connection, *at.values(), run_id="run", max_attempts=1)
    assert unlooked() == said, "ended meanwhile"
    meanwhile = int
    assert unlooked() == ()
    process = register_process(connection, kind=ProcessKind.BATCH_RUN, name="run", host="h", pid=1)
    batches.claim_replay(connection, **at, run_id="replay", process_id=process, reach=timedelta(0))
    assert unlooked() == said, "a replay"


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (None, (Health.WARNING, "drop its key", f"{ORDER.format('words')} {NO_STOP}")),
        (HELD, (Health.FAILED, HELD.found, f"{HELD.way_out} {ORDER.format('words')} {NO_STOP}")),
    ],
)
def test_validate_says_a_step_once(answers: TargetCheck | None, expected: tuple[Health, str, str]) -> None:
    """Check that a failure, which names what the table has, takes the place of the step."""
    [output] = declared(counts=AskedSink(lambda: answers)).outputs.values()
    found = check_sink(output, None, "drop its key")
    assert (found.health, found.found, found.way_out) == expected


def test_outputs_that_are_applied_already_are_not_asked(connection: sa.Connection) -> None:
    pipeline = declared(counts=AskedSink(breaks))
    apply(connection, [pipeline])
    assert ask_targets(connection, [pipeline]) == TargetAnswers()


def test_a_postgres_that_is_away_or_has_no_secret_here_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TARGET_URL", raising=False)
    found = PostgresSink(EnvVar("TARGET_URL"), "counts").check_writer("words", "counts")
    assert found is not None
    assert (found.health, "TARGET_URL" in found.found) == ("warning", True)
    with held_port() as port:
        monkeypatch.setenv("TARGET_URL", f"postgresql://u@127.0.0.1:{port}/d")
        found = PostgresSink(EnvVar("TARGET_URL"), "counts").check_writer("words", "counts")
    assert found is not None
    assert (found.health, "refused" in found.found) == ("warning", True)


@pytest.fixture
def invoke(database_url: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Return how to invoke a command for a module that declares a pipeline."""
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    monkeypatch.setenv("FOREBAY_HOME", str(home))
    (home.parent / "shop.py").write_text("")
    monkeypatch.chdir(home.parent)

    def invoked(command: list[str], pipeline: Pipeline) -> Result:
        monkeypatch.setattr(f"forebay.cli.commands.{command[0]}.load_pipelines", lambda _: [pipeline])
        return CliRunner().invoke(app, [command[0], "shop", *command[1:]])

    return invoked


@pytest.mark.parametrize("command", [["up", "--ui-port", "0"], ["apply"]])
def test_apply_writes_nothing_that_a_target_refuses_and_up_starts_with_it(
    command: list[str], connection: sa.Connection, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    def starts(*_: object, **__: object) -> Never:
        raise CommandError("this is where services start")

    monkeypatch.setattr(up, "write_dagster_home", starts)
    pipeline = declared(counts=AskedSink(lambda: HELD), more=AskedSink(breaks))
    answer = invoke(command, pipeline)
    is_up = command[0] == "up"
    assert answer.exit_code == 1, answer.output
    assert "'counts' of pipeline 'words': the table is written by output 'old'. Give it a" in answer.output
    assert "'more' of pipeline 'words': its target was not asked who writes to it" in answer.output
    assert ("Nothing was written" in answer.output) is not is_up
    assert ("its batches wait (BLOCKED)" in answer.output) is is_up
    assert ("this is where services start" in answer.output) is is_up
    assert len(difference(connection, [pipeline])) == (0 if is_up else 2)


def test_apply_refuses_a_step_while_the_pipeline_runs_and_says_the_order(
    connection: sa.Connection, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply(connection, [declared(counts=ConsoleSink())])
    monkeypatch.setattr(ConsoleSink, "step_after", lambda *_: "drop its key")
    pipeline = declared(counts=ConsoleSink(rows=1))
    step = "output 'counts' of pipeline 'words': drop its key."
    for state in ("RUNNING", "STOPPING"):
        answer = invoke(["apply"], pipeline)
        assert (answer.exit_code, len(difference(connection, [pipeline]))) == (1, 1), state
        assert f"Nothing was written. {step} {ORDER.format('words')} {NO_STOP}\n" in answer.output
        stop_pipelines(connection, name="words")
    with monkeypatch.context() as changed:
        # One that waits where nothing ends it.
        changed.setattr(ConsoleSink, "step_after", lambda *_: None)
        assert "Nothing was written" in invoke(["apply", "--dry-run"], pipeline).output
        assert invoke(["apply", "--dry-run"], pipeline).exit_code == 0, "the change is made"
    connection.exec_driver_sql("UPDATE forebay.pipelines SET state = 'STOPPED'")
    answer = invoke(["apply"], pipeline)
    assert (answer.exit_code, difference(connection, [pipeline])) == (0, [])
    assert f"{step} Do it before `forebay start --pipeline words`." in answer.output


def test_the_page_says_the_same_order() -> None:
    docs = Path(__file__).parents[3] / "docs"
    outputs = " ".join((docs / "how-to" / "outputs.md").read_text(encoding="utf-8").split())
    assert f"{ORDER.format('words')} {NO_STOP}" in outputs


@pytest.mark.parametrize("command", [["up", "--ui-port", "0"], ["apply"]])
def test_what_only_the_driver_log_shows_to_be_a_wrong_declaration_is_one_sentence(
    command: list[str], connection: sa.Connection, invoke: Invoke
) -> None:
    lines = Stream("lines", SocketText(host="127.0.0.1", port=9999))
    apply(connection, [declared(counts=ConsoleSink())])
    more = Stream("more", SocketText(host="127.0.0.1", port=9998), renamed_from="lines")
    pipeline = Pipeline("words", interval="10s")
    pipeline.output(inputs=[lines, more], sink=ConsoleSink(), name="counts")(lambda lines, more: lines)
    answer = invoke(command, pipeline)
    assert (answer.exit_code, type(answer.exception)) == (1, SystemExit)
    assert "lines is declared too: leave renamed_from out" in answer.output
