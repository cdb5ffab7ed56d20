"""Hand over records with the positions that they were read from, for sources that can be read again (Kafka, files).

Owns the blocks in flight, and whether the driver log has said that another receiver moved a position. Then all blocks
in flight are dropped, and the owner reads every position again (``recover``). Knows nothing of what is read. Only the
reader's thread uses it.

A push may leave no record to store: all became dead letters. Its links then wait for the next block. If the process
ends before that, its records are read again and go aside again.
"""

from __future__ import annotations

from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tracker_store.connection.errors import OffsetConflictError
from tracker_store.schema.states import LinkKind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from receiver_runtime.supervisor.receiver import Receiver
    from tracker_store.blocks.blocks import NewBlock, OffsetLink


@dataclass(frozen=True, slots=True)
class _UnderWay:
    future: Future[NewBlock]
    links: Sequence[OffsetLink]


class LinkedHandOver:
    """Hand over records with positions. ``on_registered`` gets the links of each registered block, in order.

    ``on_answer`` is called on another thread when a block was answered, so that ``collect`` has something to note.
    """

    def __init__(
        self,
        receiver: Receiver,
        on_registered: Callable[[Sequence[OffsetLink]], None],
        *,
        on_answer: Callable[[], None] = lambda: None,
    ) -> None:
        self._receiver = receiver
        self._path = receiver.supervisor.block_path
        self._on_registered = on_registered
        self._on_answer = on_answer
        self._under_way: list[_UnderWay] = []
        # Links that wait for the next block.
        self._waiting: list[OffsetLink] = []
        self._conflict = False

    @property
    def has_conflict(self) -> bool:
        """Return whether another receiver has moved a position; nothing is accepted until ``recover``."""
        return self._conflict

    @property
    def is_idle(self) -> bool:
        """Return whether no block is in flight."""
        return not self._under_way

    @property
    def has_waiting_links(self) -> bool:
        """Return whether the newest push left no record to store, so that its links wait for the next block."""
        return bool(self._waiting)

    def push(self, batch: pa.RecordBatch, links: Sequence[OffsetLink]) -> bool:
        """Hand over a block's records.

        Return False if another receiver has moved a position, and the records are dropped.
        """
        if self._waiting:
            links = _joined(self._waiting, links)
        try:
            future = self._path.push_linked(batch, links)
        except OffsetConflictError as error:
            self._note_conflict(error)
            return False
        if future is None:
            self._waiting = list(links)
            return True
        self._waiting = []
        self._under_way.append(_UnderWay(future, links))
        future.add_done_callback(lambda _: self._on_answer())
        return True

    def collect(self) -> None:
        """Note what has been registered, in order. Raises the error with which the receiver was refused for good."""
        while self._under_way and self._under_way[0].future.done():
            answered = self._under_way.pop(0)
            error = answered.future.exception()
            if isinstance(error, OffsetConflictError):
                self._note_conflict(error)
            elif error is not None:
                raise error
            else:
                self._on_registered(answered.links)

    def wait(self) -> None:
        """Wait until all blocks in flight are registered or refused."""
        wait([one.future for one in self._under_way])

    def settle(self) -> None:
        """Wait for the blocks in flight, then ``collect``. Raises as ``collect`` does."""
        self.wait()
        self.collect()

    def recover(self) -> None:
        """Drop the blocks in flight after a conflict. The owner then asks the driver log for every position."""
        self.settle()
        self._path.writer.resume_after_refusal()
        self._waiting = []
        self._conflict = False

    def _note_conflict(self, error: OffsetConflictError) -> None:
        if not self._conflict:
            self._receiver.report_error("another receiver has read on, what was read here is dropped", error)
        self._conflict = True


def _joined(waiting: Sequence[OffsetLink], links: Sequence[OffsetLink]) -> list[OffsetLink]:
    """Return the links that waited, then the new ones; two that continue each other become one.

    A partition whose new link begins elsewhere was opened again, at the driver log's position: its links that waited
    are dropped.
    """
    last = {_partition_of(link): link for link in waiting}
    reopened = {
        key
        for key, link in {_partition_of(link): link for link in reversed(links)}.items()
        if key in last and not _continues(last[key], link)
    }
    joined: list[OffsetLink] = []
    newest: dict[tuple[str, str], int] = {}
    for link in [*(link for link in waiting if _partition_of(link) not in reopened), *links]:
        key = _partition_of(link)
        before = joined[newest[key]] if key in newest else None
        if before is not None and before.kind is link.kind is LinkKind.BLOCK and _continues(before, link):
            joined[newest[key]] = replace(before, to_offset=link.to_offset)
        else:
            newest[key] = len(joined)
            joined.append(link)
    return joined


def _partition_of(link: OffsetLink) -> tuple[str, str]:
    return link.source, link.partition


def _continues(before: OffsetLink, link: OffsetLink) -> bool:
    if link.kind is LinkKind.ORIGIN:
        return link.generation == before.generation + 1
    return link.generation == before.generation and link.from_offset == before.to_offset
