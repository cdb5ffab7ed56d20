"""Check the agent's batch drivers, with small scripts in their place."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from receiver_runtime.agent import batch_drivers
from receiver_runtime.agent.batch_drivers import HEALTHY_AFTER_SECONDS, BatchDrivers
from receiver_runtime.agent.child_process import describe_exit
from receiver_runtime.agent.process_ends import ProcessEnds
from tests.support.polling import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# A driver that reports ready, asks to be replaced when its pid is in its file, and ends when told to drain or without
# an agent.
DRIVER = """
import os, pathlib, select, sys, time
os.write(0, b"ready\\n")
flag, said = pathlib.Path(sys.argv[1]), False
while True:
    if not said and flag.exists() and flag.read_text() == str(os.getpid()):
        said = True
        os.write(0, b"recycle because\\n")
    if select.select([0], [], [], 0.01)[0]:
        data = os.read(0, 100)
        sys.exit(0 if data in (b"", b"drain\\n") else 7)
"""


# A driver with a long run: it asks to be replaced, is told to drain, and continues.
BUSY_DRIVER = DRIVER.replace('sys.exit(0 if data in (b"", b"drain\\n") else 7)', "time.sleep(600)")


class Rig:
    def __init__(
        self, directory: Path, script: str = DRIVER, wanted: int = 1, preparation: list[str] | None = None
    ) -> None:
        self.flag = directory / "flag"
        self.ended: list[int] = []
        self.ahead = 0.0
        self.drivers = BatchDrivers(
            [sys.executable, "-c", script, str(self.flag)],
            directory,
            wanted=wanted,
            preparation=preparation,
            clock=lambda: time.monotonic() + self.ahead,
        )

    def tick(self) -> None:
        self.ended += self.drivers.tick()

    def pids(self) -> list[int]:
        return [driver.process.pid for driver in self.drivers._drivers]

    def ready(self) -> list[int]:
        return [driver.process.pid for driver in self.drivers._drivers if driver.ready]

    def until(self, what: str, predicate: object) -> None:
        def look() -> object:
            self.tick()
            return predicate()  # type: ignore[operator]

        eventually(look, what)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.drivers.stop()


def test_a_driver_is_started_and_drains_with_its_agent(rig: Rig) -> None:
    rig.until("it is ready", rig.ready)
    pid = rig.pids()[0]
    assert rig.drivers.stop() == [pid]
    assert not psutil.pid_exists(pid)


def test_a_successor_is_ready_before_the_old_one_drains(rig: Rig) -> None:
    rig.until("it is ready", rig.ready)
    old = rig.pids()[0]
    rig.flag.write_text(str(old), encoding="utf-8")
    seen_together: list[int] = []

    def replaced() -> bool:
        if len(rig.ready()) == 2:
            seen_together[:] = rig.ready()
        return old in rig.ended

    rig.until("the old one has ended", replaced)
    assert old in seen_together
    assert rig.ready() == [pid for pid in seen_together if pid != old]


def test_a_killed_driver_is_reported_and_started_again(rig: Rig) -> None:
    rig.until("it is ready", rig.ready)
    old = rig.pids()[0]
    psutil.Process(old).kill()
    rig.until("another one is ready", lambda: rig.ready() and rig.ready() != [old])
    assert rig.ended == [old]
    assert rig.drivers.how_ended == {old: "was killed by SIGKILL"}


def test_every_end_can_be_described() -> None:
    assert [describe_exit(code) for code in (3, -9, -35)] == [
        "exited with code 3",
        "was killed by SIGKILL",
        "was killed by signal 35",
    ]


def test_a_driver_that_ran_for_a_while_is_restarted_at_once(rig: Rig) -> None:
    rig.until("it is ready", rig.ready)
    old = rig.pids()[0]
    rig.ahead = HEALTHY_AFTER_SECONDS
    with ProcessEnds() as ends:
        assert not ends.wait(rig.drivers.processes(), 0)
        psutil.Process(old).kill()
        assert ends.wait(rig.drivers.processes(), 60), "its end is noticed without a tick"
        rig.tick()
        assert rig.ended == [old]
        assert rig.pids(), "the tick that finds it gone starts the next"
        # This driver has hardly run.
        psutil.Process(rig.pids()[0]).kill()
        assert ends.wait(rig.drivers.processes(), 60), "its end is noticed"
    rig.tick()
    assert not rig.pids()


def test_a_driver_that_ends_at_once_is_restarted_after_growing_pauses(tmp_path: Path) -> None:
    now = [0.0]
    drivers = BatchDrivers([sys.executable, "-c", "raise SystemExit(5)"], tmp_path, clock=lambda: now[0])
    starts: list[float] = []
    for _ in range(4):
        # No start is due while the clock stands still, so the next tick finds the end of the driver started here.
        assert drivers.tick() == []
        eventually(drivers.tick, "it has ended")
        starts.append(drivers._not_before - now[0])
        now[0] = drivers._not_before
    assert starts == sorted(starts)
    assert starts[-1] > 2 * starts[0]
    drivers.stop()


def test_the_number_of_drivers_may_change(rig: Rig) -> None:
    rig.until("it is ready", rig.ready)
    first = rig.pids()[0]
    rig.drivers.wanted = 2
    rig.until("two are ready", lambda: len(rig.ready()) == 2)
    rig.drivers.wanted = 1
    rig.until("one has drained", lambda: rig.ended)
    assert rig.pids() == [first], "the one that has been there longer stays"


def test_a_replaced_driver_finishes_its_run_however_long_it_takes(tmp_path: Path) -> None:
    """New code or the hundredth run must not cost the batch an attempt; the end of the agent may."""
    assert BUSY_DRIVER != DRIVER
    rig = Rig(tmp_path, BUSY_DRIVER)
    rig.until("it is ready", rig.ready)
    old = rig.pids()[0]
    rig.flag.write_text(str(old), encoding="utf-8")
    rig.until("it was told to drain", lambda: rig.drivers._drivers[0].end_by is not None)
    rig.ahead += 10 * batch_drivers.DRAIN_SECONDS
    rig.tick()
    with pytest.raises(subprocess.TimeoutExpired):
        rig.drivers._drivers[0].process.wait(0.3)
    rig.drivers.drain()
    rig.ahead += batch_drivers.DRAIN_SECONDS + 1
    assert set(rig.drivers.stop()) >= {old}
    assert not psutil.pid_exists(old)


PREPARATION = "import pathlib, sys; pathlib.Path(sys.argv[1]).open('a').write('once '); input()"


def test_the_preparation_runs_once_when_the_drivers_have_been_ready_for_a_while(tmp_path: Path) -> None:
    said = tmp_path / "said"
    rig = Rig(tmp_path, preparation=[sys.executable, "-c", PREPARATION, str(said)])
    try:
        rig.until("it is ready", rig.ready)
        rig.tick()
        assert rig.drivers._preparing is None, "it runs beside a start"
        rig.ahead += batch_drivers.PREPARE_AFTER_SECONDS
        rig.until("the preparation", said.exists)
        preparing = rig.drivers._preparing
        assert preparing is not None
        preparing.kill()
        rig.until("its end is seen", lambda: rig.drivers._preparing is None)
        rig.ahead += batch_drivers.PREPARE_AFTER_SECONDS
        rig.tick()
        assert rig.drivers._preparing is None
    finally:
        rig.drivers.stop()


def test_the_preparation_ends_with_the_drivers(tmp_path: Path) -> None:
    said = tmp_path / "said"
    rig = Rig(tmp_path, preparation=[sys.executable, "-c", PREPARATION, str(said)])
    try:
        rig.until("it is ready", rig.ready)
        rig.ahead += batch_drivers.PREPARE_AFTER_SECONDS
        rig.until("the preparation", said.exists)
        preparing = rig.drivers._preparing
        assert preparing is not None
    finally:
        rig.drivers.stop()
    assert preparing.returncode is not None


def test_a_child_of_the_preparation_ends_with_it(tmp_path: Path) -> None:
    """A JVM that loses its parent exits normally, and writes an archive then."""
    said = tmp_path / "said"
    script = (
        "import pathlib, subprocess, sys; child = subprocess.Popen([sys.executable, '-c', 'import time; "
        "time.sleep(600)']); path = pathlib.Path(sys.argv[1]); new = path.with_suffix('.new'); "
        "new.write_text(str(child.pid)); new.replace(path); input()"
    )
    rig = Rig(tmp_path, preparation=[sys.executable, "-c", script, str(said)])
    try:
        rig.until("it is ready", rig.ready)
        rig.ahead += batch_drivers.PREPARE_AFTER_SECONDS
        rig.until("the preparation", said.exists)
        started = psutil.Process(int(said.read_text()))
    finally:
        rig.drivers.stop()

    def has_ended() -> bool:
        try:
            # If no process reads its exit code, it stays as a zombie.
            return not started.is_running() or started.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    eventually(has_ended, "its end")


@pytest.mark.parametrize("exists", [True, False])
def test_a_preparation_that_can_not_be_started_or_logged_does_not_end_the_agent(
    tmp_path: Path, *, exists: bool
) -> None:
    """This happens on a full disk, for example."""
    (tmp_path / "batch-driver-preparation.log").mkdir()
    said = tmp_path / "said"
    program = sys.executable if exists else str(tmp_path / "none")
    rig = Rig(tmp_path, preparation=[program, "-c", PREPARATION, str(said)])
    try:
        rig.until("it is ready", rig.ready)
        rig.ahead += batch_drivers.PREPARE_AFTER_SECONDS
        rig.tick()
        if exists:
            rig.until("the preparation", said.exists)
        else:
            assert rig.drivers._preparing is None
    finally:
        rig.drivers.stop()


def test_without_drivers_nothing_is_prepared(tmp_path: Path) -> None:
    rig = Rig(tmp_path, wanted=0, preparation=[sys.executable, "-c", PREPARATION, str(tmp_path / "said")])
    rig.tick()
    rig.ahead += 2 * batch_drivers.PREPARE_AFTER_SECONDS
    rig.tick()
    assert rig.drivers._preparing is None
    rig.drivers.stop()
