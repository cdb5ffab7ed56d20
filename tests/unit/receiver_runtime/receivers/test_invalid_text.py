"""Check that a row whose text is not UTF-8 is in no block, whatever way it came: it is a dead letter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from receiver_runtime.receivers.keyed_hand_over import KeyedHandOver
from receiver_runtime.receivers.linked_hand_over import LinkedHandOver
from receiver_runtime.receivers.positioned_receiver import PositionedReceiver
from tests.unit.receiver_runtime.memory_positions import MemoryPositions
from tests.unit.receiver_runtime.receivers.test_keyed_hand_over import KeyedBlockLog
from tests.unit.receiver_runtime.rig import HandReceiver, Rig, batch, in_thread, rig
from tests.unit.receiver_runtime.support import MemoryBlockLog, eventually
from tracker_store.blocks.blocks import ORIGIN, OffsetLink
from tracker_store.schema.states import LinkKind, ReceiverEventKind

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pytest

    from tracker_store.blocks.dead_letters import StoredDeadLetter

SECONDS = 30.0


def mixed(*values: bytes) -> pa.RecordBatch:
    """Return rows of these bytes, as a parser with a fault would make them."""
    return pa.record_batch([pa.array(values, pa.binary()).view(pa.string())], names=["value"])


def assert_aside(made: Rig, *data: bytes) -> None:
    assert made.dead_letters() == [("invalid_text", 0, one) for one in data]
    messages = {message for kind, message, _ in made.reporter.events if kind is ReceiverEventKind.BAD_RECORD}
    assert messages == {"a record went aside as a dead letter: invalid_text"}


def test_buffered_rows_go_aside_and_the_others_are_stored_in_order(tmp_path: Path) -> None:
    receiver = HandReceiver()
    with rig(tmp_path, receiver, block_interval="1h") as made:
        receiver.store_buffered(batch("a"))
        receiver.store_buffered(mixed(b"b", b"\xff", b"c", b"caf\xc3"))
        assert made.stop().drained
        assert made.values() == ["a", "b", "c"]
        assert_aside(made, b"\xff", b"caf\xc3")


def test_a_push_that_does_not_wait_takes_them_too(tmp_path: Path) -> None:
    receiver = HandReceiver()
    with rig(tmp_path, receiver) as made:
        assert made.supervisor.block_path.push_if_free(mixed(b"a", b"\xff"))
        eventually(lambda: made.values() == ["a"] and made.dead_letters(), "the block and the dead letter")
        assert_aside(made, b"\xff")


def test_a_block_of_the_generator_with_nothing_else_is_no_block(tmp_path: Path) -> None:
    receiver = HandReceiver()
    with rig(tmp_path, receiver) as made:
        receiver.store_buffered(mixed(b"\xff"))
        eventually(made.dead_letters, "the dead letter")
        receiver.store_buffered(batch("after"))
        eventually(lambda: made.values() == ["after"], "the block after it")
        assert_aside(made, b"\xff")


def test_a_block_that_is_pushed_again_puts_its_rows_aside_once(tmp_path: Path) -> None:
    receiver = HandReceiver()
    with rig(tmp_path, receiver) as made:
        made.files.write_faults = ["error", "error"]
        receiver.store_buffered(mixed(b"a", b"\xff", b"b"))
        eventually(lambda: made.values() == ["a", "b"] and made.dead_letters(), "the block and the dead letter")
        assert made.stop().drained
        assert_aside(made, b"\xff")


def test_a_refused_dead_letter_does_not_store_its_block_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    receiver = HandReceiver()
    with rig(tmp_path, receiver) as made:
        add = made.rows.add_dead_letters
        refusals = iter([RuntimeError("permission denied"), RuntimeError("permission denied")])

        def refuse_twice(letters: Sequence[StoredDeadLetter]) -> None:
            if (refusal := next(refusals, None)) is not None:
                raise refusal
            add(letters)

        monkeypatch.setattr(made.rows, "add_dead_letters", refuse_twice)
        receiver.store_buffered(mixed(b"a", b"\xff", b"b"))
        eventually(made.dead_letters, "the dead letter")
        receiver.store_buffered(batch("c"))
        assert made.stop().drained
        assert made.values() == ["a", "b", "c"]
        assert_aside(made, b"\xff")


def test_a_block_of_the_receiver_is_registered_without_them(tmp_path: Path) -> None:
    receiver = HandReceiver()
    with rig(tmp_path, receiver) as made:
        receiver.store(mixed(b"a", b"\xff", b"b"))
        assert made.values() == ["a", "b"]
        receiver.store(mixed(b"\xfe"))
        assert made.values() == ["a", "b"]
        assert_aside(made, b"\xff", b"\xfe")


def test_keyed_rows_go_aside_with_their_keys(tmp_path: Path) -> None:
    log = KeyedBlockLog()
    with rig(tmp_path, HandReceiver(), log=log) as made:
        hand_over = KeyedHandOver(made.attached)
        first = hand_over.submit(mixed(b"a", b"\xff", b"b"), ["1", "2", "3"])
        nothing_left = hand_over.submit(mixed(b"\xfe"), ["4"])
        without_keys = hand_over.submit(mixed(b"c", b"\xfd"), None)
        shared = hand_over.submit(mixed(b"d", b"\xfc", b"e"), ["5", "5", "6"], rows_share_keys=True)
        answers = [one.result(SECONDS) for one in (first, nothing_left, without_keys, shared)]
        hand_over.close()
        assert [(one.added, one.duplicates) for one in answers] == [(2, 0), (0, 0), (1, 0), (2, 0)]
        assert made.values() == ["a", "b", "c", "d", "e"]
        assert log.keys == {"1", "3", "5", "6"}
        assert_aside(made, b"\xff", b"\xfe", b"\xfd", b"\xfc")


def link(of: str, first: int, end: int) -> OffsetLink:
    return OffsetLink("topic", of, 0, first, end)


def test_positions_move_on_with_the_next_block_when_nothing_is_left(tmp_path: Path) -> None:
    receiver = HandReceiver()
    registered: list[list[OffsetLink]] = []
    with rig(tmp_path, receiver) as made:
        hand_over = LinkedHandOver(receiver, lambda links: registered.append(list(links)))
        origin = OffsetLink("topic", "0", 0, ORIGIN, 0, LinkKind.ORIGIN)
        assert hand_over.push(mixed(b"a", b"\xff"), [origin, link("0", 0, 2)])
        assert not hand_over.has_waiting_links
        # Nothing is left of these three.
        assert hand_over.push(mixed(b"\xfe"), [link("0", 2, 3)])
        assert hand_over.push(mixed(b"\xfd"), [link("1", 7, 8)])
        assert hand_over.push(mixed(b"\xfc"), [link("0", 3, 4)])
        assert hand_over.has_waiting_links
        assert hand_over.push(batch("b"), [link("0", 4, 5)])
        assert not hand_over.has_waiting_links
        hand_over.settle()
        assert made.values() == ["a", "b"]
        assert registered == [[origin, link("0", 0, 2)], [link("0", 2, 5), link("1", 7, 8)]]
        assert [list(one.links) for one in made.log.chain(1)] == registered
        assert_aside(made, b"\xff", b"\xfe", b"\xfd", b"\xfc")


def test_links_that_waited_are_dropped_where_a_partition_was_opened_again(tmp_path: Path) -> None:
    receiver = HandReceiver()
    registered: list[list[OffsetLink]] = []
    with rig(tmp_path, receiver):
        hand_over = LinkedHandOver(receiver, lambda links: registered.append(list(links)))
        assert hand_over.push(mixed(b"\xff"), [link("0", 2, 3)])
        # Another receiver has read on to 9, and the partition came back.
        assert hand_over.push(batch("a"), [link("0", 9, 10)])
        hand_over.settle()
    assert registered == [[link("0", 9, 10)]]


class Text(PositionedReceiver):
    """Leave storing to the test; ``read`` waits to be stopped."""

    columns = (("value", "string"),)

    def __init__(self) -> None:
        self.reads: list[int] = []
        self.registered: list[int] = []

    def read(self, position: int) -> None:
        self.reads.append(position)
        while not self.wait(SECONDS):
            pass

    def on_registered(self, position: int) -> None:
        self.registered.append(position)


def test_a_positioned_block_with_nothing_left_holds_up_no_one(tmp_path: Path) -> None:
    log = MemoryBlockLog()
    positions = MemoryPositions(log)
    receiver = Text()
    with rig(tmp_path, receiver, log=log, positions=positions, block_interval="1h") as made:
        eventually(lambda: receiver.reads, "the start")
        receiver.store_buffered(batch("before"), 1)
        thread, errors = in_thread(lambda: receiver.store(mixed(b"\xff"), 2))
        thread.join(SECONDS)
        assert not thread.is_alive()
        assert not errors
        # What came before is registered, and the position of what went aside is not yet.
        assert made.values() == ["before"]
        assert [one.to_offset for one in positions.links()] == [1]
        receiver.store(batch("after"), 3)
        assert [(one.from_offset, one.to_offset) for one in positions.links()] == [(0, 1), (1, 3)]
        eventually(lambda: receiver.registered[-1:] == [3], "the report of the position")
        assert made.values() == ["before", "after"]
        assert_aside(made, b"\xff")
