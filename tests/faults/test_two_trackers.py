"""Two real trackers on one driver log: one leads at a time, whatever happens to the other (K13, W13).

``tests/integration/tracker_store/test_stale_terms.py`` checks that each statement of a leader with an old term is
refused; this module checks the processes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import sqlalchemy as sa

from tests.support.driver_log.log import make_log
from tests.support.polling import eventually
from tracker_store.connection.engine import connect
from tracker_store.receivers.leadership import Leadership, read_leadership
from tracker_store.receivers.processes import heartbeat, register_process
from tracker_store.receivers.receivers import placements
from tracker_store.schema.states import ProcessKind, ReceiverState

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.systems, pytest.mark.timeout(300)]

HANDED_OVER_SECONDS = 5.0


class Trackers:
    """Trackers by the names under which they lead, with an agent that runs nothing and one receiver."""

    def __init__(self, database_url: str, home: Path, engine: sa.Engine) -> None:
        self._home = home
        self._environment = {k: v for k, v in os.environ.items() if not k.startswith("FOREBAY_")} | {
            "FOREBAY_HOME": str(home),
            "FOREBAY_DATABASE_URL": database_url,
            "FOREBAY_TRACKER_HTTP": "off",
        }
        self._started: list[subprocess.Popen[bytes]] = []
        with connect(engine) as connection:
            [self.receiver_id] = make_log(connection).receiver_ids
            self.agent_id = register_process(
                connection, kind=ProcessKind.AGENT, name="here", host="here", pid=1, slots=4
            )
        self.engine = engine

    def start(self) -> None:
        """Start one more tracker, which is not restarted when it ends."""
        with self.log_of(len(self._started)).open("wb") as log:
            self._started.append(
                subprocess.Popen(
                    [sys.executable, "-m", "forebay.cli", "tracker"],
                    env=self._environment,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                )
            )

    def log_of(self, number: int) -> Path:
        return self._home / f"tracker-{number}.log"

    def stop(self) -> None:
        for process in self._started:
            process.kill()
            process.wait(60)
            assert process.stdin is not None
            process.stdin.close()

    def leadership(self) -> Leadership:
        """Return the current leadership; record the agent's heartbeat."""
        with connect(self.engine) as connection:
            heartbeat(connection, process_id=self.agent_id)
            return read_leadership(connection)

    def leader(self) -> int:
        """Return the number of the leading tracker, once there is one."""
        eventually(lambda: self.leadership().holder, "a leader")
        pid = int(str(self.leadership().holder).rpartition(":")[2])
        return [process.pid for process in self._started].index(pid)

    def signal(self, number: int, what: signal.Signals) -> None:
        self._started[number].send_signal(what)

    def stand_still(self, number: int) -> None:
        """Send SIGSTOP; return when the server no longer runs any of the tracker's queries either."""
        stopped = psutil.Process(self._started[number].pid)
        stopped.suspend()
        eventually(lambda: stopped.status() == psutil.STATUS_STOPPED, "a stopped tracker")
        eventually(
            lambda: (
                not self.execute(
                    "SELECT FROM pg_stat_activity WHERE datname = current_database() "
                    "AND application_name = 'forebay tracker' AND state <> 'idle'"
                )
            ),
            "its last answer",
        )

    def until_connected(self, count: int) -> None:
        """Wait until `count` trackers run and all but the leader know who leads; record the agent's heartbeat."""

        def connected() -> bool:
            self.leadership()
            # Other trackers only ask for the leadership. The leader's last query before it pauses is another one.
            [row] = self.execute(
                "SELECT count(DISTINCT pid) >= :n AND count(*) FILTER (WHERE query LIKE '%leadership%' "
                "AND clock_timestamp() - state_change > interval '0.1 s') >= :n - 1 AS there FROM pg_stat_activity "
                "WHERE datname = current_database() AND application_name = 'forebay tracker'",
                n=count,
            )
            return bool(row.there)

        eventually(connected, f"{count} trackers at the driver log", seconds=60)

    def give_away(self) -> None:
        """Make the receiver wait for a placement."""
        self.execute(
            "UPDATE forebay.receivers SET state = 'INACTIVE', assignment = assignment + 1, agent_id = NULL RETURNING id"
        )

    def placed(self) -> bool:
        with connect(self.engine) as connection:
            heartbeat(connection, process_id=self.agent_id)
            [placement] = placements(connection)
        return placement.state is ReceiverState.SCHEDULED

    def execute(self, statement: str, **values: object) -> list[Any]:
        with connect(self.engine) as connection:
            return list(connection.execute(sa.text(statement), values))


@pytest.fixture
def trackers(database_url: str, home: Path, engine: sa.Engine) -> Iterator[Trackers]:
    """Start two trackers; one leads and has placed the receiver, the other has read the leadership."""
    with ExitStack() as stack:
        made = Trackers(database_url, home, engine)
        stack.callback(made.stop)
        made.start()
        eventually(made.placed, "the first placement", seconds=60)
        made.start()
        made.until_connected(2)
        yield made


@pytest.mark.alone
def test_w13_the_leader_is_killed_and_another_decides_within_5_seconds(trackers: Trackers) -> None:
    took: list[float] = []
    # Only the fastest of up to three counts: a pause of the whole machine says nothing about the trackers.
    while not took or (min(took) >= HANDED_OVER_SECONDS and len(took) < 3):
        if took:
            trackers.start()
            trackers.until_connected(2)
        first = trackers.leader()
        before = trackers.leadership()
        trackers.signal(first, signal.SIGKILL)
        began = time.monotonic()
        trackers.give_away()
        eventually(trackers.placed, "a placement by another leader")
        took.append(time.monotonic() - began)
        after = trackers.leadership()
        assert after.term == before.term + 1
        assert trackers.leader() != first
    assert min(took) < HANDED_OVER_SECONDS, f"handed over after {took} s"


def test_a_leader_that_is_paused_comes_back_and_changes_nothing(trackers: Trackers) -> None:
    first = trackers.leader()
    before = trackers.leadership()
    trackers.signal(first, signal.SIGSTOP)
    eventually(lambda: trackers.leadership().term > before.term, "another leader")
    second = trackers.leader()
    assert second != first
    trackers.give_away()
    eventually(trackers.placed, "a placement by the other leader")

    # From now on the current leader is paused too, for a moment: anything written now comes from the first one.
    trackers.stand_still(second)
    try:
        held = trackers.leadership()
        trackers.give_away()
        rows = trackers.execute("SELECT r::text FROM forebay.receivers r")
        trackers.signal(first, signal.SIGCONT)
        eventually(lambda: "no longer leading" in trackers.log_of(first).read_text(), "its own word")
        assert trackers.leadership() == held
        assert trackers.execute("SELECT r::text FROM forebay.receivers r") == rows
    finally:
        trackers.signal(second, signal.SIGCONT)
    eventually(trackers.placed, "a placement")
    # It may lead again, but only after the other stood still for long, and with a new term of its own.
    assert trackers.leadership().term >= held.term
    events = trackers.execute("SELECT count(*) AS n FROM forebay.receiver_events WHERE kind = 'SCHEDULED'")
    assert events[0].n == 3
