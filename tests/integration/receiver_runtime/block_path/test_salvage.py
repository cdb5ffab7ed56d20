"""Test salvage step by step, on a real driver log and real files."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest

from orchestration.tracker.clean_up.cleaner import Cleaner
from receiver_runtime.block_store.frames.files import Files
from receiver_runtime.block_store.stores.local import LocalBlockStore
from receiver_runtime.sources.receiver_settings import ReceiverSettings
from receiver_runtime.sources.source import SourceRule
from tests.integration.receiver_runtime.salvage_rig import KilledError, MortalDriverLog, SalvagedReceiver
from tracker_store.blocks.blocks import AddOutcome
from tracker_store.connection.engine import connect
from tracker_store.connection.errors import ReceiverFencedError
from tracker_store.retention.cleanup import clean_up_receiver

if TYPE_CHECKING:
    from collections.abc import Callable

    import sqlalchemy as sa

T = TypeVar("T")

RUNBOOK = Path(__file__).parents[4] / "docs" / "runbooks" / "receiver-killed.md"


def runbook_statement(verb: str, *, within: str) -> str:
    """Return the page's only statement of this kind under the heading."""
    parts = re.split(r"\n##+ ", RUNBOOK.read_text(encoding="utf-8"))
    [section] = [part for part in parts if within in part.split("\n")[0]]
    found: list[str] = re.findall(rf"^```sql runnable\n({verb} .*?)^```", section, re.MULTILINE | re.DOTALL)
    [statement] = found
    return statement


@pytest.fixture
def receiver(engine: sa.Engine, tmp_path: Path) -> SalvagedReceiver:
    return SalvagedReceiver.make(engine, tmp_path / "blocks")


def read_all(receiver: SalvagedReceiver) -> None:
    """Act as if the pipeline had completed every registered block: its cursor is past them, and it retains no batch."""
    receiver.execute("DELETE FROM forebay.cursors WHERE receiver_id = :r")
    receiver.execute(
        "INSERT INTO forebay.cursors (consumer_id, receiver_id, next_sequence) "
        "SELECT :p, :r, max(sequence) + 1 FROM forebay.blocks WHERE receiver_id = :r",
        p=receiver.pipeline_id,
    )


def clean(receiver: SalvagedReceiver) -> int:
    with connect(receiver.engine) as connection:
        return clean_up_receiver(
            connection, receiver_id=receiver.receiver_id, threshold=datetime.now(UTC), max_rows=1000
        ).blocks


def clean_all(receiver: SalvagedReceiver) -> int:
    """Delete rows, then files; return how many files were deleted."""
    cleaner = Cleaner(lambda _: LocalBlockStore(receiver.root), restore_window=timedelta(0))
    with connect(receiver.engine) as connection:
        return cleaner.cleanup_old_batches(connection, datetime.now(UTC)).segments


# -- what is registered ----------------------------------------------------------------------------------------------


def test_every_unsealed_segment_of_every_earlier_epoch_is_salvaged_in_order(
    receiver: SalvagedReceiver,
) -> None:
    first = receiver.live(max_segment_bytes=1)  # a segment for each block
    first.keep("a")
    first.register()
    first.keep("b")
    first.keep("c", "d")
    # The next process dies before it salvages anything; the one after that dies too, after it has stored a block.
    receiver.live(receiver.claim()).keep("e")
    claimed = receiver.claim()
    assert receiver.salvage(claimed).sequence == claimed.sequence + 3
    assert receiver.blocks() == [["a"], ["b"], ["c", "d"], ["e"]]
    assert {state for state, _ in receiver.segments()} == {"SEALED"}
    assert [length for _, length in receiver.segments()] == [
        (receiver.root / path).stat().st_size for path in receiver.paths()
    ]
    told = receiver.events("SALVAGED")
    assert "2 blocks, 3 records registered as 5..6" in told[0]
    assert "1 blocks, 1 records registered as 7..7" in told[1]
    receiver.check()


def test_files_whose_rows_a_restore_lost_are_salvaged_by_the_next_process(
    receiver: SalvagedReceiver,
) -> None:
    first = receiver.live()
    first.keep("a")
    first.register()
    first.close()
    [(kept,)] = receiver.execute("SELECT max(sequence) FROM forebay.blocks WHERE receiver_id = :r")
    lost = receiver.live()
    lost.keep("b")
    lost.register()
    lost.keep("c")
    path = receiver.paths()[-1]
    # The driver log of a backup, which has nothing of the second process.
    receiver.execute("DELETE FROM forebay.blocks WHERE receiver_id = :r AND sequence > :kept", kept=kept)
    receiver.execute("DELETE FROM forebay.log_segments WHERE path = :path", path=path)
    again = receiver.live()
    again.keep("d")
    again.register()
    assert receiver.blocks() == [["a"], ["b"], ["c"], ["d"]]
    assert "2 blocks, 2 records registered" in receiver.events("SALVAGED")[-1]


def test_a_new_process_continues_after_the_blocks_it_salvaged(receiver: SalvagedReceiver) -> None:
    receiver.live().keep("a")
    second = receiver.live()
    second.keep("b")
    assert second.register() is AddOutcome.ADDED
    assert receiver.blocks() == [["a"], ["b"]]
    receiver.check()


def test_a_salvage_that_died_is_continued_and_registers_nothing_twice(receiver: SalvagedReceiver) -> None:
    for text in "abc":
        receiver.live(receiver.claim()).keep(text)
    claims = 0
    for calls in range(30):
        claims += 1
        try:
            receiver.salvage(receiver.claim(), driver_log=MortalDriverLog(receiver.engine, calls=calls))
        except KilledError:
            continue
        break
    assert claims > 3  # each of them got one step further
    assert receiver.blocks() == [["a"], ["b"], ["c"]]
    assert {state for state, _ in receiver.segments()} == {"SEALED"}
    receiver.check()


def test_rows_that_clean_up_deleted_meanwhile_are_not_registered_again(receiver: SalvagedReceiver) -> None:
    first = receiver.live(receiver.claim())
    first.keep("a")
    first.register()
    first.keep("b")
    # Its successor registers "b" and dies before it seals the segment; then clean-up deletes both.
    with pytest.raises(KilledError):
        receiver.salvage(receiver.claim(), driver_log=MortalDriverLog(receiver.engine, calls=4))
    assert receiver.blocks() == [["a"], ["b"]]
    claimed = receiver.claim()
    read_all(receiver)
    assert clean(receiver) > 0
    assert receiver.blocks() == []
    assert receiver.salvage(claimed).sequence == claimed.sequence
    assert receiver.blocks() == []
    receiver.check()


def test_a_fenced_salvage_adds_nothing(receiver: SalvagedReceiver) -> None:
    receiver.live(receiver.claim()).keep("a")
    slow = receiver.claim()
    fast = receiver.claim()
    with pytest.raises(ReceiverFencedError):
        receiver.salvage(slow)
    assert receiver.blocks() == []
    assert receiver.salvage(fast).sequence == fast.sequence + 1
    assert receiver.blocks() == [["a"]]
    receiver.check()


def test_a_salvage_retried_after_a_lost_answer_adds_nothing_twice(receiver: SalvagedReceiver) -> None:
    receiver.live(receiver.claim()).keep("a")

    class Deaf(MortalDriverLog):
        def once(self, statement: Callable[[sa.Connection], T]) -> T:
            super().once(statement)
            return super().once(statement)

    claimed = receiver.claim()
    assert receiver.salvage(claimed, driver_log=Deaf(receiver.engine, calls=1000)).sequence == claimed.sequence + 1
    assert receiver.blocks() == [["a"]]
    receiver.check()


# -- by the source's rule --------------------------------------------------------------------------------------------


def test_blocks_that_the_sender_sends_again_are_not_salvaged(receiver: SalvagedReceiver) -> None:
    life = receiver.live(receiver.claim(), rule=SourceRule.SENT_AGAIN)
    life.keep("a")
    life.register()
    life.keep("b")
    receiver.live()
    assert receiver.blocks() == [["a"]]
    assert {state for state, _ in receiver.segments()} == {"SEALED"}
    [told] = receiver.events("SALVAGED")
    assert "1 blocks, 1 records left to the sender" in told
    assert receiver.events("ERROR") == []


def test_a_source_with_positions_reads_again_from_the_logs_position(receiver: SalvagedReceiver) -> None:
    receiver.live(receiver.claim(), rule=SourceRule.OFFSETS).keep("a")
    receiver.live()
    assert receiver.blocks() == []


def test_each_block_is_salvaged_by_the_rule_in_its_own_frame(receiver: SalvagedReceiver) -> None:
    """Check with HTTP: it acknowledges a 202 when the block is stored and a 200 when it is registered.

    Both kinds of blocks are in one segment.
    """
    life = receiver.live(receiver.claim(), rule=SourceRule.SENT_AGAIN)
    life.keep("200")
    receiver.rule_of(life, SourceRule.NOT_SENT_AGAIN)
    life.keep("202")
    receiver.rule_of(life, SourceRule.SENT_AGAIN)
    life.keep("200 too")
    receiver.live()
    assert receiver.blocks() == [["202"]]


def test_blocks_registered_before_a_restore_are_salvaged_though_the_sender_would_send_again(
    receiver: SalvagedReceiver,
) -> None:
    """Check blocks whose sender has its acknowledgement: the driver log lost them, and a later frame records them."""
    life = receiver.live(receiver.claim(), rule=SourceRule.SENT_AGAIN)
    for text in ("a", "b", "c"):
        life.keep(text)
        life.register()
    life.keep("d")
    # The restored log ends after "a".
    receiver.execute("DELETE FROM forebay.blocks WHERE receiver_id = :r AND sequence > 2")
    receiver.live()
    assert receiver.blocks() == [["a"], ["b"], ["c"]]
    receiver.check()


# -- frames ----------------------------------------------------------------------------------------------------------


class SyncFailsOnce(Files):
    """Files whose next sync fails, although the bytes are on the disk."""

    failing = False

    def sync(self, fd: int) -> None:
        super().sync(fd)
        if self.failing:
            self.failing = False
            raise OSError(5, "Input/output error")


def test_a_write_that_failed_and_was_repeated_is_one_block(receiver: SalvagedReceiver) -> None:
    files = SyncFailsOnce()
    life = receiver.live(receiver.claim(), files=files)
    life.keep("a")
    files.failing = True
    life.keep("b")
    assert [len(receiver.frames(path)) for path in receiver.paths()] == [2, 1]
    for calls in range(4, 8):
        with suppress(KilledError):
            receiver.salvage(receiver.claim(), driver_log=MortalDriverLog(receiver.engine, calls=calls))
    receiver.live()
    assert receiver.blocks() == [["a"], ["b"]]
    receiver.check()


def test_a_segment_is_sealed_by_its_own_process_only_when_its_blocks_are_registered(
    receiver: SalvagedReceiver,
) -> None:
    life = receiver.live(receiver.claim(), max_segment_bytes=1)
    life.keep("a")
    life.keep("b")  # in a new segment; the segment of "a" is closed
    assert [state for state, _ in receiver.segments()] == ["OPEN", "OPEN"]
    life.register(1)
    life.handler.close_aged_segments()
    assert [state for state, _ in receiver.segments()] == ["SEALED", "OPEN"]
    life.close()
    assert [state for state, _ in receiver.segments()] == ["SEALED", "OPEN"]
    receiver.live()
    assert receiver.blocks() == [["a"], ["b"]]


def test_a_torn_tail_is_not_in_the_sealed_length_and_is_not_a_loss(receiver: SalvagedReceiver) -> None:
    receiver.live(receiver.claim()).keep("a")
    [path] = receiver.paths()
    whole = (receiver.root / path).stat().st_size
    with (receiver.root / path).open("ab") as file:
        file.write(b"FBAY\x01\x01 torn")
    receiver.live()
    assert receiver.blocks() == [["a"]]
    assert receiver.segments() == [("SEALED", whole)]
    assert receiver.events("ERROR") == []


def test_damage_is_counted_as_loss_and_affects_only_its_own_block(receiver: SalvagedReceiver) -> None:
    life = receiver.live(receiver.claim())
    life.keep("a")
    lost = life.keep("b", "c")
    torn = life.keep("d")
    life.keep("e")
    [path] = receiver.paths()
    with (receiver.root / path).open("r+b") as file:
        file.seek(lost.handle.offset + lost.handle.length - 1)
        file.write(b"\xff")
        file.seek(torn.handle.offset)  # its header too
        file.write(b"\x00" * 64)
    receiver.live()
    assert receiver.blocks() == [["a"], ["e"]]
    [told] = receiver.events("ERROR")
    assert "2 blocks that were not registered are damaged: 2 records lost, and those of 1 blocks" in told
    assert path in told
    receiver.check()


def test_damage_in_records_that_the_sender_repeats_is_not_a_loss(receiver: SalvagedReceiver) -> None:
    life = receiver.live(receiver.claim(), rule=SourceRule.SENT_AGAIN)
    block = life.keep("a")
    life.keep("b")
    [path] = receiver.paths()
    with (receiver.root / path).open("r+b") as file:
        file.seek(block.handle.length - 1)
        file.write(b"\xff")
    receiver.live()
    assert receiver.events("ERROR") == []


def test_dead_letters_without_a_row_are_recorded_once(receiver: SalvagedReceiver) -> None:
    life = receiver.live(receiver.claim())
    life.keep_dead_letter(b"\xff1")
    life.keep("a")
    life.keep_dead_letter(b"\xff2")
    for calls in range(2, 7):
        with suppress(KilledError):
            receiver.salvage(receiver.claim(), driver_log=MortalDriverLog(receiver.engine, calls=calls))
    receiver.live()
    assert receiver.dead_letters() == [b"\xff1", b"\xff2"]
    assert receiver.blocks() == [["a"]]


def test_groups_without_a_row_are_recorded_and_a_half_written_one_is_no_damage(receiver: SalvagedReceiver) -> None:
    life = receiver.live(receiver.claim())
    life.keep("a")
    life.keep_dead_letter(b"\xff1", b"", b"\xff2")
    life.keep_dead_letter(b"\xff3", b"\xff4")
    blocks, letters = receiver.paths()
    assert letters == blocks.replace("-000001", "-d000001")
    with (receiver.root / letters).open("r+b") as file:
        file.truncate(receiver.frames(letters)[-1].offset + 70)
    receiver.live()
    assert receiver.dead_letters() == [b"\xff1", b"", b"\xff2"]
    assert receiver.blocks() == [["a"]]
    assert receiver.events("ERROR") == []
    assert {state for state, _ in receiver.segments()} == {"SEALED"}


def test_no_block_is_salvaged_from_a_segment_of_dead_letters(receiver: SalvagedReceiver) -> None:
    """Attack: the segment of letters is a whole valid block of this receiver and epoch."""
    life = receiver.live(receiver.claim())
    life.keep("a")
    life.keep_dead_letter(b"\xff")
    blocks, letters = receiver.paths()
    with (receiver.root / letters).open("ab") as file:
        file.write((receiver.root / blocks).read_bytes())
    receiver.live()
    assert receiver.blocks() == [["a"]]
    assert receiver.dead_letters() == [b"\xff"]
    assert ["bytes hold no frame that can be read" in detail for detail in receiver.events("ERROR")] == [True]


# -- a zombie --------------------------------------------------------------------------------------------------------


def test_a_resumed_zombie_registers_nothing_and_its_new_blocks_are_salvaged_next(
    receiver: SalvagedReceiver,
) -> None:
    zombie = receiver.live(receiver.claim(), max_segment_bytes=300)
    zombie.keep("a")
    successor = receiver.live(max_segment_bytes=1)
    [(_, sealed), *_] = receiver.segments()
    # The zombie continues: it writes one block to the sealed file, then one to a new file.
    zombie.handler._log._settings = ReceiverSettings.model_construct(max_segment_bytes=10_000)
    zombie.keep("lost")
    zombie.handler._log._settings = ReceiverSettings.model_construct(max_segment_bytes=1)
    successor.keep("b")
    successor.register()
    zombie.keep("late")
    assert zombie.register() is AddOutcome.FENCED
    zombie.close()
    successor.keep("c")
    successor.register()
    assert receiver.segments()[0] == ("SEALED", sealed)
    assert receiver.blocks() == [["a"], ["b"], ["c"]]
    receiver.live()
    assert receiver.blocks() == [["a"], ["b"], ["c"], ["late"]]
    receiver.check()


def test_a_file_salvaged_out_of_order_stays_until_its_blocks_are_cleaned(receiver: SalvagedReceiver) -> None:
    """Check a zombie's segment: it is older than the successor's newest one, but its blocks come after that one's."""
    zombie = receiver.live(receiver.claim(), max_segment_bytes=1)
    successor = receiver.live(max_segment_bytes=1)
    zombie.keep("late")
    late = receiver.paths()[0]
    successor.keep("a")
    successor.register()
    successor.close()
    receiver.live()
    assert receiver.blocks() == [["a"], ["late"]]
    # Read up to "a", which is in the younger file.
    read_all(receiver)
    receiver.execute("UPDATE forebay.cursors SET next_sequence = 3 WHERE receiver_id = :r")
    clean_all(receiver)
    assert (receiver.root / late).exists()
    assert receiver.blocks() == [["a"], ["late"]]
    receiver.check()


def test_a_sealed_segment_can_not_be_opened(receiver: SalvagedReceiver) -> None:
    """Check a zombie that lost the answer and requests its row again: salvage has sealed that row as empty."""
    zombie = receiver.live(receiver.claim())
    path = f"receiver-{receiver.receiver_id}/{zombie.claim.epoch}-000001.segment"
    zombie.rows.open_segment(path, "not_sent_again")
    receiver.live()
    with pytest.raises(ReceiverFencedError, match="is sealed"):
        zombie.rows.open_segment(path, "not_sent_again")
    # Its next attempt makes a new segment, which the next epoch salvages.
    with pytest.raises(ReceiverFencedError):
        zombie.keep("late")
    zombie.keep("late")
    receiver.live()
    assert receiver.blocks() == [["late"]]


# -- files that are not there ----------------------------------------------------------------------------------------


def test_a_row_without_a_file_is_sealed_as_empty_and_reported(receiver: SalvagedReceiver) -> None:
    life = receiver.live(receiver.claim())
    life.rows.open_segment("receiver-1/never-made.segment", "not_sent_again")
    receiver.live()
    assert receiver.segments() == [("SEALED", 0)]
    [told] = receiver.events("SALVAGED")
    assert "receiver-1/never-made.segment was never made" in told


def test_a_file_on_another_host_is_left_open_until_a_process_sees_it(
    receiver: SalvagedReceiver, tmp_path: Path
) -> None:
    receiver.live(receiver.claim()).keep("a")
    elsewhere = tmp_path / "elsewhere"
    for host, root in (("there", elsewhere), ("there", receiver.root.parent / "unmounted"), ("here", elsewhere)):
        receiver.salvage(receiver.claim(), host=host, root=root)
        assert receiver.segments() == [("OPEN", None)]
        assert f"is not in {host}:{root}" in receiver.events("ERROR")[-1]
    # Another host that shares the directory sees the file and salvages it, whichever host wrote it.
    receiver.salvage(receiver.claim(), host="there")
    assert receiver.blocks() == [["a"]]
    receiver.check()


def test_a_missing_durable_file_with_registered_blocks_is_not_sealed_as_empty(
    receiver: SalvagedReceiver,
) -> None:
    life = receiver.live(receiver.claim())
    life.keep("a")
    life.register()
    life.keep("b")
    [path] = receiver.paths()
    away = receiver.root.parent / "away"
    (receiver.root / path).rename(away)
    receiver.salvage(receiver.claim())
    assert receiver.segments() == [("OPEN", None)]
    assert "though 1 registered blocks lie in it" in receiver.events("ERROR")[0]
    away.rename(receiver.root / path)
    receiver.salvage(receiver.claim())
    assert receiver.blocks() == [["a"], ["b"]]


def test_a_missing_ephemeral_file_is_counted(receiver: SalvagedReceiver) -> None:
    life = receiver.live(receiver.claim(), durability="ephemeral")
    life.keep("a", "b")
    life.register()
    [path] = receiver.paths()
    (receiver.root / path).unlink()
    receiver.salvage(receiver.claim())
    assert receiver.segments() == [("SEALED", 0)]
    assert "1 registered blocks, 2 records, went with their file" in receiver.events("ERROR")[0]


def test_an_unreadable_file_holds_back_only_its_own_epoch(receiver: SalvagedReceiver) -> None:
    receiver.live(receiver.claim()).keep("a")
    receiver.live(receiver.claim()).keep("b")
    unreadable, _ = receiver.paths()
    away = receiver.root.parent / "away"
    (receiver.root / unreadable).rename(away)
    (receiver.root / unreadable).mkdir()
    receiver.salvage(receiver.claim())
    assert receiver.blocks() == [["b"]]
    assert "can't be read" in receiver.events("ERROR")[0]
    (receiver.root / unreadable).rmdir()
    away.rename(receiver.root / unreadable)
    receiver.salvage(receiver.claim())
    assert receiver.blocks() == [["b"], ["a"]]
    receiver.check()


def test_the_runbook_gives_up_only_the_blocks_that_are_gone(receiver: SalvagedReceiver) -> None:
    statement = runbook_statement("UPDATE", within="can't be reached, they stay open")
    gone = receiver.live(receiver.claim())
    gone.keep("a")
    (receiver.root / receiver.paths()[0]).unlink()
    receiver.salvage(receiver.claim(), host="there")
    receiver.execute(statement)
    assert receiver.segments() == [("OPEN", None)]  # too young
    living = receiver.live(receiver.claim())
    living.keep("b")
    receiver.execute("UPDATE forebay.log_segments SET opened_at = opened_at - interval '31 days'")
    receiver.execute(statement)
    assert receiver.segments() == [("SEALED", 0), ("OPEN", None)]
    receiver.live()
    assert receiver.blocks() == [["b"]]


def test_the_runbook_gives_up_only_the_segments_of_a_removed_receiver(receiver: SalvagedReceiver) -> None:
    statement = runbook_statement("UPDATE", within="never starts again")
    receiver.live(receiver.claim()).keep("a")
    for state, removed, given_up in (
        ("INACTIVE", None, 0),
        ("ACTIVE", 31, 0),
        ("INACTIVE", 29, 0),
        ("INACTIVE", 31, 1),
    ):
        receiver.execute(
            "UPDATE forebay.receivers SET state = :s, removed_at = clock_timestamp() - make_interval(days => :d) "
            "WHERE id = :r",
            s=state,
            d=removed,
        )
        receiver.execute(statement)
        assert receiver.segments() == [[("OPEN", None)], [("SEALED", 0)]][given_up]


# -- and then --------------------------------------------------------------------------------------------------------


def test_files_of_killed_processes_are_deleted_when_they_are_no_longer_needed(receiver: SalvagedReceiver) -> None:
    for text in "abc":
        life = receiver.live()
        life.keep(text)
        life.register()
        life.keep(text * 2)
    last = receiver.live()
    last.keep("last")
    last.register()
    assert len(receiver.blocks()) == 7
    paths = receiver.paths()
    assert len(paths) == 4
    receiver.execute(
        "UPDATE forebay.pipelines SET last_batch_time = :t WHERE id = :p", t=datetime.now(UTC), p=receiver.pipeline_id
    )
    read_all(receiver)
    assert clean_all(receiver) == 3
    assert receiver.paths() == paths[-1:]
    assert [path for path in paths if (receiver.root / path).exists()] == paths[-1:]
    receiver.check()
