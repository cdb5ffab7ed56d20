"""Check that a child process gets no secret that it does not need."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from forebay import EnvVar, ParquetSink, Pipeline, Stream
from forebay.cli.instance.withheld import from_dagsters_services, from_receivers, from_tracker, only_of_outputs
from forebay.cli.services.child import Child
from forebay.cli.services.supervisor import Supervisor
from forebay.sources import Http
from orchestration.declarations.settings import Settings
from receiver_runtime.agent.agent import Agent, AgentSettings
from receiver_runtime.agent.batch_drivers import BatchDrivers
from receiver_runtime.receivers.custom.declaration import CustomSource
from receiver_runtime.supervisor.receiver import Receiver
from tests.support.polling import eventually
from tracker_store.connection.engine import create_engine

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from pyspark.sql import DataFrame

    from receiver_runtime.sources.source import Source

# Prints the names of its variables, and waits for the end of its standard input.
_CHILD = [sys.executable, "-uc", "import os, sys; print(*os.environ, 'end'); sys.stdin.read()"]


def test_dagsters_services_get_no_secret_of_sources_outputs_and_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_BLOCK_KEY", "env:BLOCK_KEY")
    monkeypatch.setenv("FOREBAY_BLOCK_KEYS_FOR_READING", "file:/run/key,env:OLD_KEY")
    stream = Stream("events", Http(listen="127.0.0.1:0", tokens=("env:HTTP_TOKEN", "file:/run/token")))
    pipeline = Pipeline("p", interval="10s")

    @pipeline.output(inputs=[stream], sink=ParquetSink(EnvVar("TARGET")))
    def out(events: DataFrame) -> DataFrame:
        return events

    assert from_tracker(Settings()) == {"BLOCK_KEY", "OLD_KEY"}
    assert from_dagsters_services(Settings(), [pipeline]) == {
        "BLOCK_KEY",
        "OLD_KEY",
        "HTTP_TOKEN",
        "TARGET",
        "FOREBAY_TRACKER_TOKEN",
        "FOREBAY_TRACKER_WRITE_TOKEN",
        "FOREBAY_DAGSTER_TOKEN",
        "FOREBAY_BLOCK_STORE",
    }


class Mine(Receiver):
    """A receiver class of a user's."""

    columns = (("value", "string"),)


def pipeline_of(source: Source, *targets: str) -> Pipeline:
    stream = Stream("events", source)
    pipeline = Pipeline("p", interval="10s")

    def out(events: DataFrame) -> DataFrame:
        return events

    for number, target in enumerate(targets):
        pipeline.output(inputs=[stream], sink=ParquetSink(EnvVar(target)), name=f"out{number}")(out)
    return pipeline


def test_receivers_get_no_secret_that_only_outputs_or_readers_of_blocks_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_BLOCK_KEY", "env:BLOCK_KEY")
    monkeypatch.setenv("FOREBAY_BLOCK_KEYS_FOR_READING", "env:OLD_KEY,env:BLOCK_KEY")
    source = Http(listen="127.0.0.1:0", tokens=("env:HTTP_TOKEN", "env:SHARED"))
    # The block store's client reads AWS's variables itself.
    of_outputs = only_of_outputs([pipeline_of(source, "TARGET", "SHARED", "AWS_ENDPOINT_URL")])
    assert of_outputs == {"TARGET"}
    assert from_receivers(Settings(), of_outputs) - from_receivers(Settings()) == {"TARGET"}
    assert from_receivers(Settings()) == {
        "OLD_KEY",
        "FOREBAY_TRACKER_TOKEN",
        "FOREBAY_TRACKER_WRITE_TOKEN",
        "FOREBAY_DAGSTER_TOKEN",
        "FOREBAY_DAGSTER_DATABASE_URL",
        "FOREBAY_DATABASE_DIRECT_URL",
    }


def test_a_receiver_class_of_a_user_may_read_any_variable() -> None:
    assert only_of_outputs([pipeline_of(CustomSource(receiver=Mine), "TARGET")]) == frozenset()


def test_what_the_connection_to_the_driver_log_needs_is_not_withheld(monkeypatch: pytest.MonkeyPatch) -> None:
    named = pipeline_of(Http(listen="127.0.0.1:0"), "PGPASSWORD", "FOREBAY_DATABASE_URL")
    assert not {"PGPASSWORD", "FOREBAY_DATABASE_URL"} & from_dagsters_services(Settings(), [named])


@pytest.mark.parametrize(
    ("name", "withheld"), [("receiver-1", "TOKEN"), ("tracker", "KEY"), ("batch-driver-1", "BOTH")]
)
def test_the_agents_children_do_not_inherit_what_is_withheld(
    name: str, withheld: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"TOKEN", "KEY", "BOTH"}
    for variable in names:
        monkeypatch.setenv(variable, "pl4nted")
    engine = create_engine("postgresql://nobody@127.0.0.1:1/none", application_name="tests")
    drivers = BatchDrivers(_CHILD, tmp_path, withheld={"BOTH"})
    agent = Agent(
        engine,
        AgentSettings(
            name="here",
            host="here",
            slots=1,
            receiver_command=lambda _: _CHILD,
            role_commands={"tracker": _CHILD},
            log_directory=tmp_path,
            withheld_from_receivers={"TOKEN"},
            withheld_from_roles={"KEY"},
        ),
    )
    line = None
    if name == "receiver-1":
        agent._receivers._start_receivers([(1, 1)])
        process, line = agent._receivers.processes[0].child.process, agent._receivers.processes[0].line
    elif name == "tracker":
        agent._roles.supervise()
        process = agent._roles.children["tracker"].process
    else:
        driver = drivers._start()
        process, line = driver.process, driver.line
    try:
        eventually(lambda: "end" in variables(tmp_path / f"{name}.log"), "the child's variables")
        assert names - set(variables(tmp_path / f"{name}.log")) == {withheld}
    finally:
        process.kill()
        process.wait(60)
        if process.stdin is not None:
            process.stdin.close()
        if line is not None:
            line.close()
        engine.dispose()


def variables(log: Path) -> Collection[str]:
    return log.read_text(encoding="utf-8").split()


def test_a_child_does_not_inherit_what_is_withheld_and_its_log_is_the_owners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("TOKEN", "KEY", "NEEDED"):
        monkeypatch.setenv(variable, "pl4nted")
    log = tmp_path / "logs" / "child.log"
    child = Child(
        "child",
        _CHILD,
        # Given by name, so it is needed.
        {"NEEDED": "1"},
        withheld=frozenset({"TOKEN", "NEEDED"}),
        guarded=False,
        ready=lambda: "end" in variables(log),
    )
    with Supervisor(tmp_path, lambda _: None) as supervisor:
        supervisor.start([child])
        assert {"TOKEN", "KEY", "NEEDED"} & set(variables(log)) == {"KEY", "NEEDED"}
        assert log.stat().st_mode & 0o777 == 0o600
