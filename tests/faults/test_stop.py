"""`forebay stop` with records in flight: all that was read comes out, once, before everything ends (K12, S04, W19)."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest

from tests.support.commands.run_program import run_program
from tests.support.machine.state_directory import state_directory
from tests.support.machine.unread_bytes import unread_bytes
from tests.support.systems.numbered_source import NumberedSource
from tests.support.systems.running_system import running_system

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.systems.running_system import RunningSystem

pytestmark = [pytest.mark.systems, pytest.mark.spark, pytest.mark.timeout(1200)]

# Far longer than sending takes: records in flight are then in the block generator, where the original loses them.
BLOCK_INTERVAL = "30s"
IN_FLIGHT = 10_000


def forebay(system: RunningSystem, *arguments: str) -> dict[str, Any]:
    """Run a command to its end; return its JSON. Its exit code must be 0."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("FOREBAY_", "DAGSTER_"))}
    done = run_program(
        [sys.executable, "-m", "forebay.cli", *arguments, "--json"],
        env=environment | {"FOREBAY_HOME": str(system.home)},
        timeout=450,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def bring_in_flight(system: RunningSystem) -> int:
    """Bring `IN_FLIGHT` records into the receiver but into no block; return the last number that was sent."""
    system.source.send()
    system.until("records in flight", lambda: system.source.last_sent - system.registered() >= IN_FLIGHT)
    last = system.source.pause()
    system.until("the receiver has read everything", lambda: unread_bytes(system.source.port) == 0)
    assert last - system.registered() >= IN_FLIGHT // 2, "a block was cut just then"
    return last


def came_out(home: Path) -> Counter[int]:
    table = ds.dataset(home / "output", partitioning="hive", format="parquet").to_table(["number"])
    return Counter(table["number"].to_pylist())


def check_all_came_out_once(home: Path, last: int) -> None:
    numbers = came_out(home)
    assert sorted(set(range(1, last + 1)) - numbers.keys()) == []
    assert [number for number, times in numbers.items() if times > 1] == []


def test_k12_s04_w19_a_graceful_stop_loses_nothing_and_a_start_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBERS_BLOCK_INTERVAL", BLOCK_INTERVAL)
    with state_directory() as home, NumberedSource() as source:
        with running_system(home, source) as system:
            # Stop one pipeline by itself: the system keeps running.
            last = bring_in_flight(system)
            stopped = forebay(system, "stop", "--pipeline", "numbered", "--timeout", "400s")
            assert stopped["stopped"]
            [row] = stopped["pipelines"]
            assert (row["state"], row["receivers"], row["waiting_records"], row["unfinished_batches"]) == (
                "STOPPED",
                [],
                0,
                0,
            )
            check_all_came_out_once(home, last)
            [receiver] = forebay(system, "receivers")["receivers"]
            assert (receiver["state"], receiver["desired_state"]) == ("INACTIVE", "stopped")
            # Its row says so a moment before the process ends.
            system.until(
                "its process has ended", lambda: system.process("forebay.cli", "receiver", "--receiver") is None
            )
            assert not system.has_ended()
            epoch = system.epoch()
            assert forebay(system, "start", "--pipeline", "numbered") == {"started": ["numbered"]}
            system.until("the receiver runs again", lambda: system.epoch() > epoch)
            # Stop everything, including the system.
            last = bring_in_flight(system)
            stopped = forebay(system, "stop", "--timeout", "400s")
            assert stopped["stopped"]
            assert stopped["ended"]
            system.until("forebay up has ended by itself", system.has_ended)
            check_all_came_out_once(home, last)
        with running_system(home, source) as system:
            system.receive(1000)
            system.settle()
            system.check_every_number_came_out_once()


def test_after_a_second_ctrl_c_the_next_start_loses_nothing() -> None:
    with state_directory() as home, NumberedSource() as source:
        with running_system(home, source) as system:
            system.receive(5000)
            # Interrupt the system while it works; wait between the signals, because two pending ones would be merged.
            system.signal(signal.SIGINT)
            system.until("the first is heard", lambda: b"Stopping all services" in (home / "up.log").read_bytes(), 30)
            system.signal(signal.SIGINT)
            asked = time.monotonic()
            while not system.has_ended():
                assert time.monotonic() < asked + 15, "a second Ctrl-C ends at once"
                time.sleep(0.05)
        with running_system(home, source) as system:
            system.receive(500)
            # A run that was killed with the rest is found missing after 10 s, and started again.
            system.settle(300.0)
            system.check_every_number_came_out_once()
