"""Test planned moves between real agents, under a real tracker and load: nothing is lost or doubled, and the pause."""

from __future__ import annotations

import socket
import sys
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import psutil
import pytest

from forebay.sources import CustomSource
from forebay.testing.receiver_processes import eventually
from orchestration.tracker import rebalancing
from orchestration.tracker.tracker import Tracker
from tests.integration.receiver_runtime.host_rig import HostRig
from tests.namespaces.acking import AckedSource
from tests.support.receivers.forked_receiver import PROGRAM
from tracker_store.connection.engine import connect
from tracker_store.receivers.hand_overs import list_rebalance_requests, request_rebalance
from tracker_store.reports.checks import check_data

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.timeout(300)

# Seconds between the newest block of the process before and the first block of its successor: much less than a lease,
# after which a lost host's receivers move. Without other load it is less than one; a busy machine can't hold that.
PAUSE_SECONDS = 5.0


class Pair:
    """Two agents that share a block store, a tracker that leads, and receivers that all start on the first agent."""

    def __init__(self, stack: ExitStack, database_url: str, root: Path, *, receivers: int, per_process: int) -> None:
        self._stack = stack
        self._database_url = database_url
        self._root = root
        self._per_process = per_process
        self.source = stack.enter_context(AckedSource([socket.create_server(("127.0.0.1", 0))]))
        self.old = self.agent("old")
        declared = CustomSource(receiver="tests.namespaces.acking:AckingReceiver", options={"port": self.source.port})
        self.receivers = [
            self.old.declare(f"numbers{number}", declared.model_dump(mode="json")) for number in range(receivers)
        ]
        stop = threading.Event()
        tracker = Tracker(self.old.engine, heartbeat_limit_seconds=30.0)
        leading = threading.Thread(target=tracker.run, args=(stop,), name="tracker")
        leading.start()
        # Before the first agent stops, so that nothing is placed again meanwhile.
        stack.callback(leading.join)
        stack.callback(stop.set)
        self.source.send()
        self.old.flow(self.receivers)

    def agent(self, host: str) -> HostRig:
        rig = HostRig(self._database_url, self._root, receivers_per_process=self._per_process, spare=True, host=host)
        self._stack.callback(rig.engine.dispose)
        rig.start()
        self._stack.callback(rig.stop)
        return rig

    def ask(self) -> None:
        """Ask for rebalancing, as `forebay agents rebalance` does."""
        with connect(self.old.engine) as connection:
            request_rebalance(connection, listeners=False)

    def is_done(self) -> bool:
        with connect(self.old.engine) as connection:
            return not list_rebalance_requests(connection)

    def spread(self) -> dict[str, int]:
        rows = self.old.execute(
            "SELECT p.host, count(*) AS receivers FROM forebay.receivers r JOIN forebay.processes p "
            "ON p.id = r.agent_id WHERE r.state = 'ACTIVE' GROUP BY 1"
        )
        return {row.host: int(row.receivers) for row in rows}

    def pauses(self) -> list[float]:
        """Return for each move the seconds between two blocks, the last before it and the first after it."""
        rows = self.old.execute(
            "SELECT extract(epoch FROM (SELECT min(b.added_at) FROM forebay.blocks b "
            "    WHERE b.receiver_id = m.receiver_id AND b.sequence > m.sequence AND b.segment_id IS NOT NULL)"
            "  - (SELECT max(b.added_at) FROM forebay.blocks b "
            "    WHERE b.receiver_id = m.receiver_id AND b.sequence < m.sequence AND b.segment_id IS NOT NULL)"
            ")::float8 AS seconds FROM forebay.blocks m WHERE m.segment_id IS NULL AND m.sequence > 1"
        )
        return [row.seconds for row in rows]

    def check(self) -> None:
        """Check that every acknowledged number is registered, and that no number is registered twice."""
        self.source.pause()
        eventually(self.source.is_at_rest, "the answers to all that was sent")
        registered = [number for receiver_id in self.receivers for number in self.old.numbers(receiver_id)]
        assert len(set(registered)) == len(registered), "a number is registered twice"
        assert self.source.acknowledged
        assert self.source.acknowledged - set(registered) == set(), "an acknowledged number is lost"
        with connect(self.old.engine) as connection:
            assert [check for check in check_data(connection) if not check.passed] == []


@contextmanager
def pair(database_url: str, root: Path, *, receivers: int, per_process: int) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(stack, database_url, root, receivers=receivers, per_process=per_process)


@pytest.mark.parametrize("per_process", [1, 4], ids=["each in a process", "sharing a process"])
def test_w15_moves_under_load_lose_and_double_nothing_and_pause_a_stream_briefly(
    database_url: str, tmp_path: Path, per_process: int
) -> None:
    with pair(database_url, tmp_path, receivers=4, per_process=per_process) as system:
        system.agent("new")
        system.ask()
        eventually(system.is_done, "the end of the moves")
        assert system.spread() == {"old": 2, "new": 2}
        system.old.flow(system.receivers)
        assert sorted(system.old.epochs().values()) == [1, 1, 2, 2], "a receiver was started once more than needed"
        assert system.old.events("FENCED") == {}
        assert system.old.events("SALVAGED") == {}
        system.check()
        pauses = system.pauses()
        assert len(pauses) == 2
        assert min(pauses) < PAUSE_SECONDS, pauses


def test_a_host_on_which_receivers_can_not_start_gets_none_and_the_stream_goes_on(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebalancing, "OFFER_SECONDS", 5.0)
    with pair(database_url, tmp_path, receivers=2, per_process=1) as system:
        with monkeypatch.context() as broken:
            broken.setattr(HostRig, "_program", lambda *_: [sys.executable, "-c", "raise SystemExit(3)"])
            system.agent("new")
            system.ask()
            eventually(system.is_done, "the end of the request")
        assert system.spread() == {"old": 2}
        assert set(system.old.epochs().values()) == {1}
        system.old.flow(system.receivers)
        system.check()


@pytest.mark.slow
def test_a_host_without_the_block_store_gets_no_receiver_and_the_stream_goes_on(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebalancing, "OFFER_SECONDS", 15.0)
    with pair(database_url, tmp_path, receivers=2, per_process=1) as system:
        # The new host has had its store under this name, and now it is not mounted.
        elsewhere = str(tmp_path / "elsewhere")
        system.old.execute(
            "INSERT INTO forebay.block_stores (host, roots, names) VALUES ('new', ARRAY['an-id'], ARRAY[:name])",
            name=elsewhere,
        )

        def program(self: HostRig, *words: str) -> list[str]:
            return [*PROGRAM, self._database_url, elsewhere, "0", *words]

        with monkeypatch.context() as unmounted:
            unmounted.setattr(HostRig, "_program", program)
            system.agent("new")
            system.ask()
            eventually(lambda: system.old.events("ERROR"), "the event")
            assert {message for messages in system.old.events("ERROR").values() for message in messages} == {
                f"it can't move to {socket.gethostname()}: the block store is not there"
            }
            assert system.spread() == {"old": 2}
            eventually(system.is_done, "the end of the request")
            assert len(system.old.events("ERROR")) == 1
        assert system.spread() == {"old": 2}
        assert set(system.old.epochs().values()) == {1}
        system.old.flow(system.receivers)
        system.check()


def test_the_process_before_is_killed_while_it_should_drain(database_url: str, tmp_path: Path) -> None:
    with pair(database_url, tmp_path, receivers=2, per_process=1) as system:
        holders = {
            row.id: psutil.Process(row.pid)
            for row in system.old.execute(
                "SELECT r.id, p.pid FROM forebay.receivers r JOIN forebay.processes p ON p.id = r.process_id"
            )
        }
        for holder in holders.values():
            holder.suspend()
        system.agent("new")
        system.ask()
        taken = "SELECT id FROM forebay.receivers WHERE state = 'SCHEDULED'"
        eventually(lambda: system.old.execute(taken), "a receiver that is taken over")
        [(receiver_id,)] = system.old.execute(taken)
        assert system.old.epochs()[receiver_id] == 1, "it was claimed before the process had signed off"
        holders.pop(receiver_id).kill()
        for holder in holders.values():
            holder.resume()
        eventually(lambda: system.spread() == {"old": 1, "new": 1}, "the receiver on the new agent")
        system.old.flow(system.receivers)
        system.check()
