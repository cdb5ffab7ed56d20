"""Test how much is gathered while nothing can be handed on."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from forebay_contrib.fluent_forward.gathered_messages import GatheredMessages
from forebay_contrib.fluent_forward.records import SCHEMA, Origin, Parsed, Rows
from receiver_runtime.block_path.block_handler import DeadLetter
from receiver_runtime.block_store.frames.frame import DeadLetterReason

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    import pyarrow as pa

_MOST_BYTES = 8 * 2**20
_LETTER = DeadLetter(DeadLetterReason.UNPARSABLE, bytes(2**16))


class _StuckReceiver:
    """Hand nothing on until it may."""

    def __init__(self) -> None:
        settings = SimpleNamespace(block_queue_size=4, block_interval=1.0, max_block_bytes=2**26)
        self.supervisor = SimpleNamespace(record_schema=SCHEMA, block_path=None, settings=settings)
        self.is_called, self.may_go_on = threading.Event(), threading.Event()
        self.sizes: list[int] = []

    def store_buffered(self, batch: pa.RecordBatch) -> None:
        self._take(batch.nbytes)

    def store_dead_letters(self, letters: Sequence[DeadLetter]) -> None:
        self._take(sum(len(letter.data) for letter in letters))

    def _take(self, nbytes: int) -> None:
        self.is_called.set()
        assert self.may_go_on.wait(20)
        self.sizes.append(nbytes)


def _row(nbytes: int) -> Parsed:
    rows = Rows(["t"], [Origin("h", 1)], [1], records=[b"y" * nbytes], nbytes=nbytes)
    rows.times.append(0)
    return Parsed(rows)


async def _add(gathered: GatheredMessages, parsed: Parsed) -> None:
    await gathered.wait_for_room()
    gathered.add(parsed, "h", lambda: None)


async def _added_while_stuck(
    receiver: _StuckReceiver, make: Callable[[GatheredMessages], Coroutine[Any, Any, None]], count: int
) -> int:
    """Return how many of ``count`` additions did not wait; then let all go on."""
    gathered = GatheredMessages(cast("Any", receiver), has_keys=True)
    await _add(gathered, _row(1))
    assert await asyncio.to_thread(receiver.is_called.wait, 20)
    tasks = [asyncio.create_task(make(gathered)) for _ in range(count)]
    # Each runs as far as it can.
    await asyncio.sleep(0)
    added = sum(task.done() for task in tasks)
    receiver.may_go_on.set()
    await asyncio.gather(*tasks)
    await gathered.close()
    return added


@pytest.mark.parametrize(
    ("make", "nbytes"),
    [
        (lambda gathered: _add(gathered, _row(2**20)), 2**20),
        (lambda gathered: gathered.add_letter(_LETTER), 2**16),
        # Chunks without entries: once with its many answers, and several.
        (lambda gathered: _add(gathered, Parsed(Rows(), ack=bytes(1000), key="k")), 1000),
        (lambda gathered: _add(gathered, Parsed(Rows(), ack=bytes(1000))), 1000),
    ],
    ids=["rows", "letters", "same chunk", "empty chunks"],
)
def test_what_is_gathered_has_a_bound(
    make: Callable[[GatheredMessages], Coroutine[Any, Any, None]], nbytes: int
) -> None:
    receiver, most = _StuckReceiver(), _MOST_BYTES // nbytes
    assert 0 < asyncio.run(_added_while_stuck(receiver, make, most + 50)) <= most
    # All that waited began at once, and was handed on in parts.
    assert max(receiver.sizes) <= _MOST_BYTES + 2 * nbytes
