"""`forebay up --drain` and its signals: what was received is processed first, within a bound; nothing is lost (O05)."""

from __future__ import annotations

import re
import signal
import time

import pytest

from tests.faults.test_stop import BLOCK_INTERVAL, bring_in_flight, check_all_came_out_once
from tests.support.machine.state_directory import state_directory
from tests.support.systems.numbered_source import NumberedSource
from tests.support.systems.running_system import RunningSystem, running_system

pytestmark = [pytest.mark.systems, pytest.mark.spark, pytest.mark.timeout(1200)]

BOUND_SECONDS = 15.0
# Far more than a signal, the end of each process and a loaded machine need together.
END_SECONDS = 120.0


# What a pipeline whose receivers have ended may wait for.
NO_RECEIVERS = r"numbered: stopping; (waiting|batch)"


def said(system: RunningSystem) -> str:
    """Return what this `forebay up` has written to its terminal."""
    return (system.home / "up.log").read_text(encoding="utf-8")


def test_o05_w19_a_signal_drains_and_the_next_start_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBERS_BLOCK_INTERVAL", BLOCK_INTERVAL)
    with state_directory() as home, NumberedSource() as source:
        with running_system(home, source, arguments=["--drain"]) as system:
            assert "Ctrl-C stops everything when what was received is processed" in said(system)
            last = bring_in_flight(system)
            system.signal(signal.SIGTERM)
            system.until("forebay up has ended by itself", system.has_ended, 400)
            assert "numbered: stopping; receivers: numbers/1 ACTIVE" in said(system)
            assert "numbered: stopped\nDrained.\n" in said(system)
            check_all_came_out_once(home, last)
        monkeypatch.delenv("NUMBERS_BLOCK_INTERVAL")
        # It ends with SIGINT: this time by the setting, and with little to do.
        with running_system(home, source, FOREBAY_STOP_GRACEFULLY_ON_SHUTDOWN="true") as system:
            system.receive(1000)
            system.settle()
            system.check_every_number_came_out_once()
        assert "Drained." in said(system)


def test_o05_the_bound_holds_a_second_signal_ends_at_once_and_nothing_is_lost() -> None:
    module = "tests.faults.failing_pipeline"
    with state_directory() as home, NumberedSource() as source:
        (home / "fails").touch()
        bound = {"FOREBAY_GRACEFUL_STOP_TIMEOUT": f"{BOUND_SECONDS:g}s"}
        with running_system(home, source, module, arguments=["--drain"], **bound) as system:
            system.exit_code = 1
            system.receive(1000)
            source.pause()
            system.until("an attempt has failed", lambda: any(row.state == "FAILED" for row in system.batches()))
            system.signal(signal.SIGTERM)
            asked = time.monotonic()
            system.until("forebay up has ended by itself", system.has_ended, BOUND_SECONDS + END_SECONDS)
            assert time.monotonic() - asked >= BOUND_SECONDS
            assert f"Not drained within {BOUND_SECONDS:g} s" in said(system)
        with running_system(home, source, module, arguments=["--drain"]) as system:
            system.receive(1000)
            source.pause()
            system.signal(signal.SIGTERM)
            # Until then records may be in a process that is killed below, and a socket's sender can't send them again.
            system.until("the receiver has ended", lambda: re.search(NO_RECEIVERS, said(system)))
            assert "told to fail" in said(system)
            system.signal(signal.SIGTERM)
            asked = time.monotonic()
            while not system.has_ended():
                assert time.monotonic() < asked + 15, "a second signal ends at once"
                time.sleep(0.05)
            assert "Not drained, because of a second signal" in said(system)
        (home / "fails").unlink()
        with running_system(home, source, module) as system:
            system.receive(500)
            # A run that was killed with the rest is found missing after 10 s, and started again.
            system.settle(300.0)
            system.check_every_number_came_out_once()
