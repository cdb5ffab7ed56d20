"""Test crash, FAILED, sensor and person with a real agent, tracker and sensor: no loop is endless (K04, W15, W20)."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from forebay import Stream
from forebay.sources import SocketText
from orchestration.dagster_defs.sensors import receiver_sensor
from orchestration.dagster_defs.sensors.receiver_sensor import due_restarts
from orchestration.tracker.tracker import Tracker
from receiver_runtime.agent import receiver_processes
from tests.integration.receiver_runtime.host_rig import HostRig, host_rig
from tests.integration.receiver_runtime.receiver_rig import NumberedSource
from tests.support.polling import eventually
from tracker_store.receivers.receivers import restart_receiver

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import sqlalchemy as sa

CRASHES = 4


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver_processes, "MAX_CRASHES", CRASHES)
    monkeypatch.setattr(receiver_sensor, "FIRST_PAUSE", timedelta(0))


class Leader:
    """A leading tracker, which the test ticks while it waits."""

    def __init__(self, engine: sa.Engine, connection: sa.Connection, rig: HostRig) -> None:
        self._tracker = Tracker(engine, heartbeat_limit_seconds=60)
        self._connection = connection
        self._rig = rig

    def until_state(self, receiver_id: int, state: str) -> str:
        """Tick until the receiver is in this state; return the reason."""
        self.until(lambda: self._rig.states()[receiver_id][0] == state, f"receiver {receiver_id} {state}")
        return self._rig.states()[receiver_id][1]

    def until(self, predicate: Callable[[], object], what: str) -> None:
        """Tick until the predicate holds."""

        def is_so() -> object:
            self._tracker.tick(self._connection)
            return predicate()

        eventually(is_so, what, seconds=90)


@pytest.mark.usefixtures("quick")
def test_k04_w20_crashes_end_as_failed_then_dagster_tries_then_a_person_must(
    engine: sa.Engine, connection: sa.Connection, database_url: str, tmp_path: Path
) -> None:
    with host_rig(database_url, tmp_path, receivers=1, receivers_per_process=1, poison=True) as (rig, [poison]):
        leader = Leader(engine, connection, rig)
        stream = Stream("numbers0", SocketText(host="127.0.0.1", port=1), max_restarts_per_hour=1)
        for episode in (1, 2):
            reason = leader.until_state(poison, "FAILED")
            assert reason == f"crashed {CRASHES} times in a row, the last time: receiver process exited with code 3"
            exits = rig.events("EXITED")[poison]
            assert len(exits) == CRASHES * episode, "each episode has all of its attempts"
            waits = []
            for crash, message in enumerate(exits[-CRASHES:], 1):
                told, _, wait = message.partition("restart in ")
                assert told == f"receiver process exited with code 3; crash {crash}, "
                waits.append(float(wait.removesuffix(" s")))
            assert (waits[0], waits) == (0, sorted(set(waits))), "at once the first time, and then ever later"
            assert len(rig.events("FAILED")[poison]) == episode
            assert rig.processes() == []
            due, waiting = due_restarts(connection, [stream])
            if episode == 1:
                assert waiting == []
                assert restart_receiver(
                    connection,
                    receiver_id=poison,
                    why=due[0].reason,
                    by="Dagster run 1",
                    failed_under=due[0].assignment,
                )
                leader.until(lambda: rig.epochs()[poison] > CRASHES, "it is placed again, and claimed by a process")
        assert due == []
        assert "numbers0/1 stays FAILED, 1 of 1 restarts" in waiting[0]
        claims = rig.epochs()
        for _ in range(3):
            leader.until_state(poison, "FAILED")
        assert rig.epochs() == claims
        [(detail,)] = rig.execute(
            "SELECT detail FROM forebay.receiver_events WHERE kind = 'EXITED' ORDER BY id LIMIT 1"
        )
    assert "receiver state" in detail
    assert (tmp_path / "logs" / f"receiver-{poison}.log").read_text().startswith(f"{detail}\n")


@pytest.mark.usefixtures("quick")
def test_w20_a_restart_of_a_failed_receiver_receives_again_once_the_source_is_there(
    engine: sa.Engine, connection: sa.Connection, database_url: str, tmp_path: Path
) -> None:
    """Check after its own restarts are used up: the records from before and after the restart are there once."""
    with host_rig(
        database_url,
        tmp_path,
        receivers=1,
        receivers_per_process=1,
        receiver_max_restarts="2",
        receiver_restart_delay="50ms",
    ) as (rig, sources):
        [(receiver, source)] = sources.items()
        leader = Leader(engine, connection, rig)
        leader.until_state(receiver, "ACTIVE")
        rig.flow([receiver])
        source.close()
        assert "2 restarts in a row did not help" in leader.until_state(receiver, "FAILED")
        # Its process writes the event after the state.
        eventually(lambda: receiver in rig.events("FAILED"), "the event")
        assert len(rig.events("FAILED")[receiver]) == 1
        before = rig.numbers(receiver)
        with closing(NumberedSource(pause=0.02)) as another:
            rig.execute(
                "UPDATE forebay.streams SET declaration = "
                "jsonb_set(declaration, '{source,port}', to_jsonb(CAST(:port AS int)))",
                port=another.port,
            )
            assert restart_receiver(connection, receiver_id=receiver, why="restarted by an operator")
            leader.until_state(receiver, "ACTIVE")
            rig.flow([receiver])
            # The other source counts from the beginning too.
            after = rig.numbers(receiver)[len(before) :]
            assert before == list(range(len(before)))
            assert after == list(range(len(after)))
