"""Hold what a running system listens on, after batches have run, against the table in docs/security.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.machine.open_sockets import open_sockets
from tests.support.pages.listening import compare, listening_table

if TYPE_CHECKING:
    from tests.support.machine.open_sockets import OpenSocket
    from tests.support.systems.running_system import RunningSystem

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def test_each_socket_is_in_the_table_and_each_row_is_open(system: RunningSystem) -> None:
    rows = listening_table()
    seen: set[OpenSocket] = set()

    def all_are_open() -> bool:
        # A worker of Spark's listens only while it is needed: what was seen once counts.
        seen.update(open_sockets(system.processes()))
        return not compare(rows, seen, system.home)[1]

    system.until("each socket of the table is open", all_are_open)
    unknown, _ = compare(rows, seen, system.home)
    assert unknown == [], "add it to docs/security.md, or close it"
