"""Two agents on one machine: a host that dies takes no receiver's data with it, and its receivers move."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.namespaces.hosts import Hosts, running_hosts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.systems, pytest.mark.timeout(300)]


@pytest.fixture
def hosts(database_url: str, home: Path) -> Iterator[Hosts]:
    """Start two agents, each with a receiver; the lease is 6 s."""
    with running_hosts(
        ("a", "b"),
        home=home,
        database_url=database_url,
        block_store=str(home / "blocks"),
        listeners=[socket.create_server(("127.0.0.1", 0))],
        FOREBAY_HEARTBEAT_LIMIT_SECONDS="6",
    ) as rig:
        yield rig


@pytest.mark.parametrize("whole_host", [False, True], ids=["the agent", "the whole host"])
def test_k05_the_receivers_of_an_agent_that_is_killed_move(hosts: Hosts, *, whole_host: bool) -> None:
    [moving] = hosts.on("a")
    [staying] = hosts.on("b")
    before = hosts.receivers()
    victims = hosts.family("a")
    for process in victims if whole_host else victims[:1]:
        process.kill()
    # A receiver whose agent is gone drains, and ends by itself.
    assert [left for left in psutil.wait_procs(victims, timeout=40)[1] if left.is_running()] == []
    hosts.until("its lease is over", lambda: hosts.events("LEASE_EXPIRED", moving))
    hosts.until("it is on the other host", lambda: hosts.receivers()[moving][1] == "b")
    hosts.flow([moving, staying])
    now = hosts.receivers()
    assert now[moving][2] > before[moving][2]
    assert now[staying][:3] == before[staying][:3], "the other host's own receiver was moved"
    hosts.check_every_acknowledged_number_came_out_once()
