"""Test the budgets: what is kept of each sender in a minute, and that all else is counted once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from receiver_runtime.block_path.block_handler import DeadLetter
from receiver_runtime.block_path.dead_letters.dead_letter_budget import (
    MOST_BYTES,
    MOST_LETTERS,
    WINDOW,
    DeadLetterBudget,
)
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from tests.unit.receiver_runtime.rig import HandReceiver, running
from tests.unit.receiver_runtime.support import ManualClock
from tracker_store.schema.states import ReceiverEventKind

if TYPE_CHECKING:
    from pathlib import Path

BAD = DeadLetterReason.INVALID_ENCODING


def letters(count: int, peer: str, data: bytes = b"\xff") -> list[DeadLetter]:
    return [DeadLetter(BAD, data, peer=peer)] * count


def test_a_peer_keeps_so_many_letters_in_a_minute_and_another_peer_its_own() -> None:
    clock = ManualClock()
    budget = DeadLetterBudget(clock)
    kept, over = budget.take(letters(MOST_LETTERS + 7, "a") + letters(3, "b"))
    assert len(kept) == MOST_LETTERS + 3
    assert [(reason, one.letters, one.nbytes) for reason, one in over.items()] == [(BAD, 7, 7)]
    clock.advance(WINDOW - 1)
    assert budget.take(letters(1, "a"))[0] == []
    clock.advance(1)
    assert len(budget.take(letters(2, "a"))[0]) == 2


def test_bytes_count_too_and_one_letter_fits() -> None:
    budget = DeadLetterBudget(ManualClock())
    part = bytes(MOST_BYTES)
    kept, over = budget.take([*letters(1, "a", part), *letters(1, "a", b"\xff"), *letters(1, "a", b"")])
    assert [len(letter.data) for letter in kept] == [MOST_BYTES, 0]
    assert (over[BAD].letters, over[BAD].nbytes) == (1, 1)


def test_letters_without_a_peer_have_no_budget() -> None:
    budget = DeadLetterBudget(ManualClock())
    kept, over = budget.take(letters(10 * MOST_LETTERS, ""))
    assert (len(kept), over) == (10 * MOST_LETTERS, {})


def test_many_peers_together_keep_no_more_than_a_hundred() -> None:
    """Attack: datagrams with forged addresses."""
    clock = ManualClock()
    budget = DeadLetterBudget(clock)
    forged = [DeadLetter(BAD, b"\xff", peer=f"10.0.{n // 256}.{n % 256}") for n in range(30_000)]
    kept, over = budget.take(forged)
    assert len(kept) == 100 + MOST_LETTERS
    assert over[BAD].letters == len(forged) - len(kept)
    clock.advance(WINDOW)
    assert len(budget.take(letters(1, "10.9.9.9"))[0]) == 1


@pytest.fixture
def receiver() -> HandReceiver:
    return HandReceiver()


def test_what_is_over_is_counted_in_the_next_row_of_the_reason_and_at_the_end(
    receiver: HandReceiver, tmp_path: Path
) -> None:
    with running(tmp_path, receiver) as made:
        receiver.store_dead_letters(letters(MOST_LETTERS + 5, "a", b"\xff1"))
        [row] = made.rows.dead_letters
        assert (row.letters, row.dropped, row.dropped_bytes) == (MOST_LETTERS, 5, 10)
        # Nothing of these is kept, so no row tells of them yet.
        receiver.store_dead_letters(letters(2, "a"))
        receiver.store_dead_letters([DeadLetter(DeadLetterReason.TRUNCATED, b"x", peer="b")])
        assert [row.dropped for row in made.rows.dead_letters] == [5, 0]
        receiver.store_dead_letters(letters(1, "b"))
        assert [row.dropped for row in made.rows.dead_letters] == [5, 0, 2]
        receiver.store_dead_letters(letters(4, "a"))
        made.stop()
        assert [(row.letters, row.dropped) for row in made.rows.dead_letters][3:] == [(0, 4)]
        events = [message for kind, message, _ in made.reporter.events if kind is ReceiverEventKind.BAD_RECORD]
        over = "dead letters were counted and not kept, a sender's budget is used up: invalid_encoding"
        assert events.count(over) == 3
        assert len(made.dead_letters()) == MOST_LETTERS + 2
