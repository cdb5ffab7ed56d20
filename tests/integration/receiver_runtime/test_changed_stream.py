"""Test `forebay apply` of a changed stream: the old process drains, then a new one claims; no record is lost."""

from __future__ import annotations

import socket
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from forebay.testing.cutting_proxy import CuttingProxy, through
from forebay.testing.receiver_processes import eventually
from orchestration.tracker.receiver_placement import ReceiverPlacement
from receiver_runtime.receivers.sockets.text_declaration import SocketText
from receiver_runtime.watching.exit_codes import ExitCode
from tests.integration.receiver_runtime.receiver_rig import ReceiverRig, exit_code
from tests.support.machine.unread_bytes import unread_bytes
from tracker_store.batches.pipelines import apply_stream
from tracker_store.connection.engine import connect
from tracker_store.receivers.leadership import read_leadership, take_leadership
from tracker_store.receivers.processes import register_process
from tracker_store.receivers.receivers import placements
from tracker_store.schema.states import ProcessKind, ReceiverState

if TYPE_CHECKING:
    import sqlalchemy as sa

    from tracker_store.receivers.receivers import Placement

_RECORDS = 10_000


def only(connection: sa.Connection) -> Placement:
    [placement] = placements(connection)
    return placement


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="asks Linux what the receiver has read")
def test_a_changed_stream_loses_no_record_that_its_receiver_has_read(database_url: str, tmp_path: Path) -> None:
    """Check with a socket as the source, which sends nothing twice.

    The receiver can't register while its stream is changed.
    """
    with ExitStack() as stack:
        listener = stack.enter_context(closing(socket.create_server(("127.0.0.1", 0))))
        listener.settimeout(90)
        proxy = stack.enter_context(closing(CuttingProxy(database_url)))
        source = SocketText(host="127.0.0.1", port=listener.getsockname()[1]).model_dump(mode="json")
        # Everything that it reads stays in its buffer.
        rig = stack.enter_context(closing(ReceiverRig.make(database_url, tmp_path, source, block_interval="60s")))
        old = rig.start(database_url=through(database_url, proxy.port))
        connection, _ = listener.accept()
        stack.enter_context(connection)
        connection.sendall(b"".join(b"%d\n" % n for n in range(_RECORDS)))
        eventually(lambda: unread_bytes(listener.getsockname()[1]) == 0, "the receiver's reading")
        eventually(lambda: rig.state()[0] == "ACTIVE", "the receiver's state")
        assert rig.records() == 0

        proxy.away = True
        proxy.cut()
        log = stack.enter_context(connect(rig.engine))
        term = take_leadership(log, seen=read_leadership(log), holder="a test")
        assert term is not None
        register_process(log, kind=ProcessKind.AGENT, name="here", host="here", pid=1, slots=1)
        declaration = {"source": source, "settings": {"block_interval": "20ms"}}
        apply_stream(log, name="lines", declaration=declaration, receivers=1)
        # The clock stands still: this test is not about the time limit for a process that does not sign off.
        tracker = ReceiverPlacement(lambda: 0.0)
        for _ in range(3):
            tracker.tick(log, term=term)
            assert only(log).state is ReceiverState.INACTIVE, "the old process holds what it has read"

        proxy.away = False
        assert exit_code(old) == ExitCode.FENCED, rig.logs()
        assert rig.records() == _RECORDS, "it was moved, and drained first"
        tracker.tick(log, term=term)
        assert only(log).state is ReceiverState.SCHEDULED
        rig.start(only(log).assignment)
        successor, _ = listener.accept()
        stack.enter_context(successor)
        successor.sendall(b"more\n")
        eventually(lambda: rig.has_records(_RECORDS + 1), "what the successor reads")
        assert rig.values() == [*(str(n) for n in range(_RECORDS)), "more"]
