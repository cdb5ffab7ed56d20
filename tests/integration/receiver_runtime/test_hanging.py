"""Test that a receiver process whose disk hangs is replaced, and that its stored blocks are salvaged."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from forebay.testing.receiver_processes import eventually
from receiver_runtime.process.receiver_task import HANGING_MESSAGE
from receiver_runtime.watching.exit_codes import ExitCode
from tests.integration.receiver_runtime.receiver_rig import NumberedSource, ReceiverRig, exit_code
from tracker_store.connection.engine import connect
from tracker_store.receivers.receivers import give_up_receiver, receiver_events

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# While the file exists, a sync hangs, as on a network file system whose server is stopped. The limit is short only
# during that time, so that a busy machine is not taken for a hanging one.
_HANGING = """
import pathlib, time
from receiver_runtime.supervisor import receiver_supervisor
from receiver_runtime.block_store.frames.files import Files
hangs, sync = pathlib.Path({path!r}), Files.sync

def sync_later(files, fd):
    while hangs.exists():
        time.sleep(0.01)
    sync(files, fd)

Files.sync = sync_later
receiver_supervisor.progress_limit = lambda settings: 3.0 if hangs.exists() else 600.0
"""


@pytest.fixture
def rig(database_url: str, tmp_path: Path, source: NumberedSource) -> Iterator[ReceiverRig]:
    made = ReceiverRig.on_socket(database_url, tmp_path / "receiver", source.port, progress_timeout="10m")
    yield made
    made.close()


def test_a_process_whose_disk_hangs_becomes_inactive_and_is_replaced(
    rig: ReceiverRig, source: NumberedSource, tmp_path: Path
) -> None:
    hangs = tmp_path / "hangs"
    process = rig.start(first=_HANGING.format(path=str(hangs)))
    eventually(lambda: rig.records() > 50, "records")
    registered = rig.values()
    hangs.touch()
    assert exit_code(process) == ExitCode.HANGING
    state, reason = rig.state()
    assert state == "SCHEDULED"
    assert reason.startswith("degraded: it holds data, and nothing was done or even failed for 3 s")
    with connect(rig.engine) as connection:
        assert HANGING_MESSAGE in [message for _, message, _ in receiver_events(connection, rig.receiver_id)]

    # Under the same assignment, as its agent does.
    hangs.unlink()
    before = rig.records()
    process = rig.start()
    eventually(lambda: rig.records() > before + 50, "more records")
    assert rig.state()[0] == "ACTIVE"
    source.pause()
    process.send_signal(signal.SIGTERM)
    assert exit_code(process) == ExitCode.STOPPED
    values = rig.values()
    assert values[: len(registered)] == registered
    numbers = [int(value) for value in values]
    assert numbers == sorted(set(numbers)), "a line came twice, or out of order"


def test_a_receiver_held_by_another_process_is_not_given_up(rig: ReceiverRig) -> None:
    rig.start()
    eventually(lambda: rig.records() > 0, "records")
    [(process_id,)] = rig.execute("SELECT process_id FROM forebay.receivers WHERE id = :r", r=rig.receiver_id)
    with connect(rig.engine) as connection:
        for assignment, process in ((1, process_id + 1), (2, process_id)):
            assert not give_up_receiver(
                connection, receiver_id=rig.receiver_id, assignment=assignment, process_id=process, reason="hanging"
            )
        assert rig.state()[0] == "ACTIVE"
        assert give_up_receiver(
            connection, receiver_id=rig.receiver_id, assignment=1, process_id=process_id, reason="hanging"
        )
    assert rig.state() == ("SCHEDULED", "hanging")
