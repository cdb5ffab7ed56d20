"""Kill a real receiver process with stored, unregistered blocks, and start its successor; on any store."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from forebay.testing.receiver_processes import cut_off_until, eventually
from receiver_runtime.block_store.frames.frame import FrameKind
from receiver_runtime.block_store.frames.segment import IntactFrame
from receiver_runtime.block_store.stores.stores import replicas_of
from receiver_runtime.watching.exit_codes import ExitCode
from tests.integration.receiver_runtime.receiver_rig import exit_code
from tracker_store.connection.engine import connect
from tracker_store.reports.checks import check_data
from tracker_store.schema.states import ReceiverEventKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.testing.cutting_proxy import CuttingProxy
    from receiver_runtime.block_store.stores.interface import BlockStore
from tests.integration.receiver_runtime.receiver_rig import NumberedSource, ReceiverRig


def segment_paths(store: BlockStore) -> list[str]:
    """Return the paths of all replicas, in the order of epochs and segments."""
    return sorted({path for replica in replicas_of(store) for path in replica.segment_paths()})


def stored(rig: ReceiverRig) -> list[str]:
    """Return every record in an intact block of any file, by epoch and file."""
    store = rig.store
    found: list[str] = []
    for path in segment_paths(store):
        for item in store.scan(path):
            # A stop in the middle of a line leaves that line's dead letter.
            if isinstance(item, IntactFrame) and item.header.kind is FrameKind.BLOCK:
                for batch in store.read_batches(path, item.offset, item.length, item.crc32c):
                    found.extend(batch.column(0).to_pylist())
    return found


def holds_unregistered(rig: ReceiverRig, blocks: int) -> bool:
    store = rig.store
    frames = sum(
        isinstance(item, IntactFrame) and item.header.kind is FrameKind.BLOCK
        for path in segment_paths(store)
        for item in store.scan(path)
    )
    [(registered,)] = rig.execute("SELECT count(*) FROM forebay.blocks WHERE segment_id IS NOT NULL")
    return frames >= int(registered) + blocks


def hold_unregistered(rig: ReceiverRig, between: CuttingProxy, blocks: int = 3) -> None:
    """Receive some records, and cut the driver log off until blocks are stored that are not registered."""
    eventually(lambda: rig.records() > 50, "50 records")
    cut_off_until(
        between,
        lambda: rig.is_cut_off() and holds_unregistered(rig, blocks),
        rig.records,
        f"{blocks} blocks that are stored and not registered",
    )


def check_each_stored_record_came_out_once(rig: ReceiverRig) -> None:
    values = rig.values()
    assert values == stored(rig)
    numbers = [int(value) for value in values]
    assert numbers == sorted(set(numbers))
    with connect(rig.engine) as connection:
        assert [result for result in check_data(connection) if not result.passed] == []


def kill_and_take_over(
    rig: ReceiverRig,
    source: NumberedSource,
    proxy: tuple[CuttingProxy, str],
    *,
    before_the_next: Callable[[], None] = lambda: None,
) -> None:
    """Kill a process that can't register while it receives; check that what it had stored comes out once."""
    between, url = proxy
    process = rig.start(database_url=url)
    hold_unregistered(rig, between)
    process.kill()
    process.wait(60)
    source.pause()
    before_the_next()
    # Not before this point: the killed process may have written its last frames to one replica alone.
    before, waiting = rig.records(), len(stored(rig))
    assert waiting > before
    second = rig.start()
    eventually(lambda: rig.records() == waiting, "what was stored is registered")
    source.sending.set()
    eventually(lambda: rig.records() > waiting + 50, "and the new process receives")
    second.send_signal(signal.SIGTERM)
    assert exit_code(second) == ExitCode.STOPPED
    check_each_stored_record_came_out_once(rig)
    assert rig.events().count(ReceiverEventKind.SALVAGED) == 1
    assert {state for _, state, _ in rig.segments()} == {"SEALED"}
