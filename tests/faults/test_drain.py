"""Two real agents with a receiver under load: draining one moves the receiver after it has drained."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from receiver_runtime.receivers.sockets.text_declaration import SocketText
from tests.support.systems.numbered_source import NumberedSource
from tracker_store.batches.pipelines import apply_stream
from tracker_store.connection.engine import connect
from tracker_store.reports import checks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.systems

SECONDS = 60.0
RECEIVER = (
    "SELECT r.state, agent.name AS agent, (SELECT coalesce(max(total_records), 0) FROM forebay.blocks) AS records "
    "FROM forebay.receivers r LEFT JOIN forebay.processes agent ON agent.id = r.agent_id"
)


@contextlib.contextmanager
def running_agent(host: str, environment: dict[str, str], log: Path) -> Iterator[None]:
    with log.open("wb") as output:
        agent = subprocess.Popen(
            [sys.executable, "-m", "forebay.cli", "agent", "--host", host, "--parent-pipe"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            yield
        finally:
            assert agent.stdin is not None
            agent.stdin.close()
            agent.wait(60)


def until(engine: sa.Engine, state: str, agent: str | None, records: int = 0) -> sa.Row[Any]:
    deadline = time.monotonic() + SECONDS
    while True:
        with connect(engine) as connection:
            row = connection.execute(sa.text(RECEIVER)).one()
        if row.state == state and agent in (None, row.agent) and row.records > records:
            return row
        assert time.monotonic() < deadline, f"not within {SECONDS:g} s: {state} on {agent}; it is {row}"
        time.sleep(0.1)


@pytest.mark.timeout(240)
def test_a_drained_agents_receiver_moves_after_it_has_registered_what_it_read(
    engine: sa.Engine, database_url: str, home: Path
) -> None:
    environment = {**os.environ, "FOREBAY_DATABASE_URL": database_url, "FOREBAY_HOME": str(home)}
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(NumberedSource())
        source.send()
        with connect(engine) as connection:
            declared = SocketText(host="127.0.0.1", port=source.port).model_dump(mode="json")
            apply_stream(connection, name="lines", declaration={"source": declared, "settings": {}}, receivers=1)
        for host in ("a", "b"):
            stack.enter_context(running_agent(host, environment, home / f"{host}.txt"))
        before = until(engine, "ACTIVE", None, records=1000)
        [other] = {"a", "b"} - {before.agent}
        command = [sys.executable, "-m", "forebay.cli", "agents", "drain", before.agent]
        told = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
        assert "1 receiver(s) leave it" in told.stdout
        moved = until(engine, "ACTIVE", other)
        until(engine, "ACTIVE", other, records=moved.records + 1000)
        with connect(engine) as connection:
            [first, second] = connection.execute(
                sa.text("SELECT added_at FROM forebay.blocks WHERE segment_id IS NULL ORDER BY sequence")
            ).scalars()
            ended = connection.execute(
                sa.text("SELECT ended_at FROM forebay.processes WHERE kind = 'receiver' ORDER BY id LIMIT 1")
            ).scalar_one()
            assert first < ended < second, "the new claim comes after the old process has drained, and fences none"
            assert [check for check in checks.check_data(connection) if check.violations] == []
