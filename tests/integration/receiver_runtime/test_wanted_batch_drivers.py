"""Test that an agent runs as many batch drivers as the scaling schedule wants, never fewer than its own (O04)."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING

import psutil

from receiver_runtime.agent.agent import Agent, AgentSettings
from receiver_runtime.agent.batch_drivers import BatchDrivers
from tests.support.driver_log.log import make_log
from tests.support.polling import eventually, joined
from tracker_store.batches.run_queue import register_batch_driver
from tracker_store.batches.scaling import record_scaling
from tracker_store.connection.engine import connect
from tracker_store.receivers.processes import register_process
from tracker_store.schema.states import ProcessKind

if TYPE_CHECKING:
    from pathlib import Path

    import sqlalchemy as sa

# Waits for the request to drain, as a batch driver without a batch does.
_DRIVER = "import sys, os; os.read(0, 100)"


def test_o04_an_agent_starts_and_drains_drivers_as_they_are_wanted(engine: sa.Engine, tmp_path: Path) -> None:
    mark = str(tmp_path)
    agent = Agent(
        engine,
        AgentSettings(
            name="here",
            host="here",
            slots=0,
            receiver_command=lambda _: [],
            role_commands={},
            log_directory=tmp_path / "logs",
        ),
        batch_drivers=BatchDrivers([sys.executable, "-c", _DRIVER, mark], tmp_path / "logs", wanted=1),
        # A new share takes effect only after it has not changed for a while.
        clock=lambda: time.monotonic() * 30,
    )

    def drivers() -> int:
        return sum(_is_running(child, mark) for child in psutil.Process().children())

    with connect(engine) as connection:
        log = make_log(connection)
        process_id = register_process(connection, kind=ProcessKind.BATCH_DRIVER, name="d", host="here", pid=1)
        register_batch_driver(connection, process_id=process_id, location="forebay")

        def want(number: int) -> None:
            record_scaling(
                connection,
                pipeline_id=log.pipeline_id,
                ratio=1.0,
                batches=1,
                executors=1,
                batch_drivers=number,
                applied=True,
                reason="a test",
            )

        stop = threading.Event()
        running = threading.Thread(target=agent.run, args=(stop,))
        running.start()
        try:
            eventually(lambda: drivers() == 1, "the driver that it was started for")
            want(3)
            eventually(lambda: drivers() == 3, "two more")
            want(1)
            eventually(lambda: drivers() == 1, "one again")
        finally:
            stop.set()
            joined(running)
    assert drivers() == 0


def _is_running(process: psutil.Process, word: str) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and word in process.cmdline()
    except psutil.NoSuchProcess:
        # The process has just ended.
        return False
