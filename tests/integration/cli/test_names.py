"""Test the names that a shell is offered: those of the driver log, within a second, or none."""

from __future__ import annotations

import socket
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
import sqlalchemy as sa

from forebay.cli import names
from orchestration.replay_choice import parsed_time
from tests.support.driver_log.log import INTERVAL, NOON, make_log
from tests.support.postgres.server import PostgresProcess
from tracker_store.batches.pipelines import apply_stream
from tracker_store.batches.readers import attach_reader, remove_reader
from tracker_store.blocks.block_stores import attach_block_store
from tracker_store.connection.engine import connect, create_engine
from tracker_store.install import migrate
from tracker_store.receivers.processes import deregister_process, register_process
from tracker_store.schema.states import ProcessKind
from tracker_store.server.embedded_postgres import EmbeddedPostgres

if TYPE_CHECKING:
    from pathlib import Path

    import typer


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait longer than a shell: this machine may be busy."""
    monkeypatch.setattr(names, "PATIENCE_SECONDS", 30.0)


def after(pipeline: str) -> typer.Context:
    return cast("typer.Context", SimpleNamespace(params={"pipeline": pipeline}))


def test_names_begin_as_written(engine: sa.Engine, database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", f"{database_url}{'&' if '?' in database_url else '?'}pool_mode=session")
    with connect(engine) as connection:
        log = make_log(connection, receivers=11)
        apply_stream(connection, name="orders", declaration={"source": {}, "settings": {}}, receivers=1)
        for number in (1, 2):
            log.tracker.allocate_blocks_to_batch(NOON + number * INTERVAL)
        log.tracker.allocate_blocks_to_batch(NOON + 3 * INTERVAL + timedelta(milliseconds=250))
    assert names.streams("") == ["lines", "orders"]
    assert names.streams("or") == ["orders"]
    assert names.pipelines("w") == ["words"]
    assert names.pipelines("%") == []
    assert names.receivers("or") == ["orders", "orders/1"]
    assert names.receivers("lines/1") == ["lines/1", "lines/10", "lines/11"]
    times = names.batches(after("words"), "2026")
    assert times == ["20260101T120030.250000Z", "20260101T120020Z", "20260101T120010Z"]
    assert [parsed_time(time) for time in times[1:]] == [NOON + 2 * INTERVAL, NOON + INTERVAL]
    assert parsed_time(times[0]) == datetime(2026, 1, 1, 12, 0, 30, 250_000, tzinfo=UTC)
    assert names.batches(after("others"), "") == []


def test_outputs_readers_agents_and_lost_hosts_begin_as_written(
    engine: sa.Engine, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    with connect(engine) as connection:
        log = make_log(connection)
        assert names.outputs(after("words"), "") == []
        connection.execute(
            sa.text("""
                UPDATE forebay.pipelines
                SET declaration = declaration || '{"outputs": {"counts": {}, "errors": {}, "copy": {}}}'
            """)
        )
        attach_reader(connection, name="dashboard", stream="lines")
        attach_reader(connection, name="gone", stream="lines")
        remove_reader(connection, "gone")
        for agent, host in (("blue", "host-1"), ("black", "host-2"), ("old", "host-3")):
            process_id = register_process(connection, kind=ProcessKind.AGENT, name=agent, host=host, pid=1)
        deregister_process(connection, process_id=process_id)
        attach_block_store(connection, host="host-1", roots={"directory-1": "/blocks"})
        attach_block_store(connection, host="host-4", roots={"directory-1": "/blocks"})
        connection.execute(
            sa.text("UPDATE forebay.receivers SET host = 'host-3' WHERE id = :r"), {"r": log.receiver_ids[0]}
        )
    assert names.outputs(after("words"), "") == ["copy", "counts", "errors"]
    assert names.outputs(after("words"), "co") == ["copy", "counts"]
    assert names.outputs(after("others"), "") == []
    assert names.readers("") == ["dashboard"]
    assert names.readers("x") == []
    assert names.agents("") == ["black", "blue"]
    assert names.agents("bl") == ["black", "blue"]
    assert names.agents("o") == []
    assert names.lost_hosts("") == ["host-3", "host-4"]
    assert names.lost_hosts("host-1") == []


def test_the_embedded_server_of_this_home_is_asked(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FOREBAY_DATABASE_URL", raising=False)
    monkeypatch.setenv("FOREBAY_HOME", str(home))
    assert names.streams("") == []
    server = EmbeddedPostgres(home / "postgres")
    with PostgresProcess(server):
        server.ensure_database()
        migrate.upgrade(server.url())
        server.ensure_services_login()
        engine = create_engine(server.services_url(), application_name="test", pool_size=1)
        with connect(engine) as connection:
            apply_stream(connection, name="lines", declaration={"source": {}, "settings": {}}, receivers=1)
        engine.dispose()
        assert names.streams("") == ["lines"]
    assert names.streams("") == []


def test_a_server_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "PATIENCE_SECONDS", 0.2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        monkeypatch.setenv("FOREBAY_DATABASE_URL", f"postgresql://127.0.0.1:{silent.getsockname()[1]}/none")
        began = time.monotonic()
        assert names.streams("") == []
        assert time.monotonic() - began < 1.5, "libpq itself waits two seconds"


@pytest.mark.parametrize("url", ["mysql://nowhere", "postgresql://127.0.0.1:1/none", "://"])
def test_an_address_that_is_none_is_no_error(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", url)
    found: list[Any] = names.pipelines("")
    assert found == []
