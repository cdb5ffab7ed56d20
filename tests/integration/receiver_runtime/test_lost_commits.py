"""Test how the next process handles a driver log without its last commits (promoted standby, restored backup)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import pytest

from receiver_runtime.block_store.frames.frame import FrameKind
from receiver_runtime.reporting.driver_log import DriverLog
from receiver_runtime.sources.source import SourceRule
from tests.integration.receiver_runtime.salvage_rig import SalvagedReceiver
from tests.support.driver_log.log import make_log
from tests.unit.receiver_runtime.support import eventually
from tracker_store.blocks.blocks import ChannelMove
from tracker_store.connection.engine import connect
from tracker_store.connection.errors import LostCommitsError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import sqlalchemy as sa

    from receiver_runtime.reporting.receiver_status import ReceiverStatus

T = TypeVar("T")

LACKS = "is registered up to sequence"


@pytest.fixture
def receiver(engine: sa.Engine, tmp_path: Path) -> SalvagedReceiver:
    return SalvagedReceiver.make(engine, tmp_path / "blocks")


def lose(receiver: SalvagedReceiver, *, after: int, segments_too: bool = True) -> None:
    """Delete blocks as on a standby that had the receiver's blocks only up to a sequence when it was promoted."""
    receiver.execute("DELETE FROM forebay.blocks WHERE receiver_id = :r AND sequence > :after", after=after)
    # A segment is sealed after its last block is registered.
    receiver.execute(
        "UPDATE forebay.log_segments SET state = 'OPEN', length = NULL, sealed_at = NULL, salvaged_to = NULL, "
        "salvaged_sequence = NULL WHERE receiver_id = :r"
    )
    if segments_too:
        receiver.execute(
            "DELETE FROM forebay.log_segments g WHERE g.receiver_id = :r "
            "AND NOT EXISTS (SELECT FROM forebay.blocks b WHERE b.segment_id = g.id)"
        )


def lacks(receiver: SalvagedReceiver) -> list[str]:
    return [detail for detail in receiver.events("ERROR") if LACKS in detail]


@pytest.mark.parametrize("end", ["idle", "stopped"])
def test_the_newest_acknowledged_block_is_registered_again_without_a_later_block(
    receiver: SalvagedReceiver, end: str
) -> None:
    """Check a block whose sender has the acknowledgement and will not send it again."""
    life = receiver.live(receiver.claim(), rule=SourceRule.SENT_AGAIN)
    for text in ("a", "b"):
        life.keep(text)
        life.register()
    if end == "stopped":
        life.close()
    else:
        life.handler.close_aged_segments()
        life.handler.close_aged_segments()
    lose(receiver, after=2)
    receiver.live()
    assert receiver.blocks() == [["a"], ["b"]]
    assert ["was up to 3" in detail and "1 blocks, 1 records (sequences 3..3)" in detail for detail in lacks(receiver)]
    receiver.check()


def test_an_unacknowledged_block_is_still_left_to_the_sender(receiver: SalvagedReceiver) -> None:
    life = receiver.live(receiver.claim(), rule=SourceRule.SENT_AGAIN)
    for text in ("a", "b"):
        life.keep(text)
        life.register()
    life.keep("c")
    life.close()
    lose(receiver, after=2)
    receiver.live()
    assert receiver.blocks() == [["a"], ["b"]]
    assert "1 blocks, 1 records left to the sender" in receiver.events("SALVAGED")[-1]


def test_a_note_is_written_once_and_only_if_senders_repeat_unacknowledged_records(
    receiver: SalvagedReceiver,
) -> None:
    notes = []
    for rule in SourceRule:
        life = receiver.live(receiver.claim(), rule=rule)
        life.keep("a")
        life.handler.close_aged_segments()
        life.register()
        for _ in range(5):
            life.handler.close_aged_segments()
        life.close()
        notes.append(sum(frame.header.kind is FrameKind.NOTE for frame in receiver.frames(receiver.paths()[-1])))
        assert receiver.segments()[-1][0] == "SEALED"
    assert dict(zip(SourceRule, notes, strict=True)) == {
        rule: int(rule is SourceRule.SENT_AGAIN) for rule in SourceRule
    }


def test_records_with_positions_are_read_again_from_the_logs_position(receiver: SalvagedReceiver) -> None:
    """Check this because the position is in the same transaction as the block: both are lost, or neither."""
    life = receiver.live(receiver.claim(), rule=SourceRule.OFFSETS)
    for text in ("a", "b", "c"):
        life.keep(text)
        life.register()
    lose(receiver, after=2)
    receiver.live()
    assert receiver.blocks() == [["a"]]
    [said] = lacks(receiver)
    assert "1 blocks, 1 records (sequences 3..3) are read again from the positions" in said


def test_claims_and_segments_that_were_lost_too_come_back_in_their_order(receiver: SalvagedReceiver) -> None:
    first = receiver.live(max_segment_bytes=1)  # a segment for each block
    for text in ("a", "b", "c"):
        first.keep(text)
        first.register()
    first.close()
    second = receiver.live(max_segment_bytes=1)
    second.keep("d")
    second.register()
    second.keep("e")
    lose(receiver, after=2)
    assert len(receiver.paths()) == 1
    receiver.live()
    assert receiver.blocks() == [["a"], ["b"], ["c"], ["d"], ["e"]]
    errors = receiver.events("ERROR")
    assert "4 are salvaged now" in errors[0]
    # No damage is reported: for an epoch without rows, nothing says where its sequences began.
    assert not [detail for detail in errors if "damaged" in detail or "lost and" in detail]
    receiver.check()
    # They come back only once.
    receiver.live()
    assert receiver.blocks() == [["a"], ["b"], ["c"], ["d"], ["e"]]


def test_files_of_another_driver_log_are_not_taken_for_ours(receiver: SalvagedReceiver, engine: sa.Engine) -> None:
    """Check after the database was created again and the directory with blocks of the old one was kept."""
    old = receiver.live()
    old.keep("a")
    old.register()
    receiver.execute("DELETE FROM forebay.blocks WHERE receiver_id = :r")
    receiver.execute("DELETE FROM forebay.log_segments WHERE receiver_id = :r")
    receiver.live()
    assert receiver.blocks() == []
    assert "1 stay as they are" in receiver.events("ERROR")[-1]


def test_a_file_left_behind_by_clean_up_does_not_come_back(receiver: SalvagedReceiver) -> None:
    """Check a file that was salvaged, read and cleaned up, while an unavailable replica kept its copy."""
    killed = receiver.live()
    killed.keep("a")
    path = receiver.paths()[-1]
    salvaged = receiver.live()
    salvaged.keep("b")
    salvaged.register()
    salvaged.keep("c")
    salvaged.register()
    receiver.execute("DELETE FROM forebay.blocks WHERE receiver_id = :r AND sequence <= 4 AND segment_id IS NOT NULL")
    receiver.execute("UPDATE forebay.receivers SET low_mark = 4 WHERE id = :r")
    receiver.execute("DELETE FROM forebay.log_segments WHERE path = :path", path=path)
    receiver.live()
    assert receiver.blocks() == [["c"]]
    assert f"1 stay as they are, for they may be another driver log's: {path}" in receiver.events("ERROR")[-1]


def test_a_segment_with_a_lost_newest_block_is_not_sealed_by_the_process_that_registered_it(
    receiver: SalvagedReceiver,
) -> None:
    life = receiver.live(max_segment_bytes=1)
    for text in ("a", "b"):
        life.keep(text)
        life.register()
    lose(receiver, after=2, segments_too=False)
    life.close()
    assert receiver.segments()[-1] == ("OPEN", None)
    receiver.live()
    assert receiver.blocks() == [["a"], ["b"]]


def test_a_block_lost_between_its_salvage_and_the_seal_is_salvaged_again(receiver: SalvagedReceiver) -> None:
    receiver.live().keep("a")

    class FailsOver(DriverLog):
        """A driver log that fails over to a standby without what was salvaged."""

        def until_answered(
            self, what: str, statement: Callable[[sa.Connection], T], *, status: ReceiverStatus | None = None
        ) -> T:
            if what == "seal salvaged segments":
                lose(receiver, after=2, segments_too=False)
            return super().until_answered(what, statement, status=status)

    with pytest.raises(LostCommitsError):
        receiver.salvage(receiver.claim(), driver_log=FailsOver(receiver.engine))
    assert receiver.blocks() == []
    receiver.live()
    assert receiver.blocks() == [["a"]]


def test_a_file_that_clean_up_deletes_during_a_salvage_is_not_reported_lost(receiver: SalvagedReceiver) -> None:
    life = receiver.live()
    life.keep("a")
    life.register()
    life.close()
    [path] = receiver.paths()

    class CleansUp(DriverLog):
        """Delete a file and its row after the file was listed."""

        def until_answered(
            self, what: str, statement: Callable[[sa.Connection], T], *, status: ReceiverStatus | None = None
        ) -> T:
            if what == "look for rows of segments":
                (receiver.root / path).unlink()
                receiver.execute("DELETE FROM forebay.log_segments WHERE path = :path", path=path)
            return super().until_answered(what, statement, status=status)

    receiver.salvage(receiver.claim(), driver_log=CleansUp(receiver.engine))
    assert receiver.segments() == []
    assert receiver.events("ERROR") == []


def channel(receiver: SalvagedReceiver) -> list[tuple[str, int]]:
    return [tuple(row) for row in receiver.execute("SELECT channel, position FROM forebay.channels ORDER BY channel")]


def test_a_channel_s_blocks_are_registered_again_with_its_position(receiver: SalvagedReceiver) -> None:
    life = receiver.live(receiver.claim(), rule=SourceRule.SENT_AGAIN)
    for n, text in enumerate(("a", "b", "c")):
        life.keep(text, moves=[ChannelMove("", "one", n, n + 1), ChannelMove("", text, 0, 1)])
        life.register()
    # This one was refused: its number, and not its move, is the next one's.
    life.keep("refused", moves=[ChannelMove("", "one", 70, 80)])
    life.stored.pop()
    life.keep("d", moves=[ChannelMove("", "one", 3, 4)])
    life.register()
    life.keep("never acknowledged", moves=[ChannelMove("", "one", 4, 5)])
    life.close()
    lose(receiver, after=2)
    # The sender has sent "b" again to another receiver, and a record in the channel "c" too.
    receiver.execute("DELETE FROM forebay.channels WHERE channel = 'b'")
    receiver.execute("UPDATE forebay.channels SET position = 2 WHERE channel = 'one'")
    receiver.execute("INSERT INTO forebay.channels VALUES (1, '', 'b', 1, 99)")
    receiver.live()
    assert receiver.blocks() == [["a"], ["c"], ["d"]]
    assert channel(receiver) == [("a", 1), ("b", 1), ("c", 1), ("one", 4)]
    said = receiver.events("SALVAGED")[-1]
    assert "2 blocks, 2 records registered" in said
    assert "1 blocks, 1 records left out, their channels are behind them" in said
    assert "left to the sender" in said
    # A block is registered whole, and an event says what of it is there twice.
    [twice] = [detail for detail in receiver.events("ERROR") if LACKS not in detail]
    assert twice.startswith("channel c, offsets 0..0: these were sent again")
    receiver.check()


def two_receivers(engine: sa.Engine, root: Path) -> list[SalvagedReceiver]:
    with connect(engine) as connection:
        log = make_log(connection, receivers=2)
    return [SalvagedReceiver(engine, root, receiver_id, log.pipeline_id) for receiver_id in log.receiver_ids]


def acknowledge_in_turn(receivers: Sequence[SalvagedReceiver]) -> None:
    """Have each receiver acknowledge the next record of one channel, and lose that."""
    for n, receiver in enumerate(receivers):
        life = receiver.live(receiver.claim(), rule=SourceRule.SENT_AGAIN)
        life.keep(f"record {n}", moves=[ChannelMove("", "one", n, n + 1)])
        life.register()
        life.close()
    for receiver in receivers:
        lose(receiver, after=1)
    receivers[0].execute("DELETE FROM forebay.channels")


def test_a_salvage_waits_for_what_another_receiver_has_of_a_channel(engine: sa.Engine, tmp_path: Path) -> None:
    first, second = two_receivers(engine, tmp_path / "blocks")
    acknowledge_in_turn([first, second])
    second.gap_seconds = 60
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(second.live)
        eventually(lambda: lacks(second), "the second one's salvage")
        assert second.blocks() == []
        first.live()
        waiting.result(30)
    assert (first.blocks(), second.blocks()) == ([["record 0"]], [["record 1"]])
    assert channel(first) == [("one", 2)]
    assert not [detail for detail in second.events("ERROR") if "offsets" in detail]


def test_a_channel_jumps_a_gap_that_stays_and_what_is_in_it_is_registered_later(
    engine: sa.Engine, tmp_path: Path
) -> None:
    first, second = two_receivers(engine, tmp_path / "blocks")
    acknowledge_in_turn([first, second])
    second.live()
    assert channel(second) == [("one", 2)]
    assert "channel one, offsets 0..0: a later block of this receiver" in second.events("ERROR")[-1]
    first.live()
    assert (first.blocks(), second.blocks()) == ([["record 0"]], [["record 1"]])
    assert "left out" not in first.events("SALVAGED")[-1]
    # It fills the gap once.
    assert first.execute("SELECT gaps::text FROM forebay.channels") == [("{}",)]
    lose(first, after=1)
    first.live()
    assert first.blocks() == []
    first.check()


def test_moves_of_dead_letters_alone_come_back_in_their_place(receiver: SalvagedReceiver) -> None:
    life = receiver.live(receiver.claim(), rule=SourceRule.SENT_AGAIN)
    life.keep("a", moves=[ChannelMove("", "one", 0, 1)])
    life.register()
    life.keep_dead_letter(b"bad")
    life.move_alone(ChannelMove("", "one", 1, 2))
    life.keep("c", moves=[ChannelMove("", "one", 2, 3)])
    life.register()
    life.move_alone(ChannelMove("", "one", 3, 4), ChannelMove("", "two", 0, 1))
    life.close()
    lose(receiver, after=1)
    receiver.execute("DELETE FROM forebay.channels")
    receiver.live()
    assert receiver.blocks() == [["a"], ["c"]]
    assert channel(receiver) == [("one", 4), ("two", 1)]
    assert receiver.dead_letters() == [b"bad"]
    assert not [detail for detail in receiver.events("ERROR") if "offsets" in detail]
    receiver.check()
