"""Check the hand-over of channels against a sequence of records of each: each is stored once, and in order."""

from __future__ import annotations

import random
import threading
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from receiver_runtime.block_path.block_handler import DeadLetter
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.receivers.http.channels.hand_over import ChannelHandOver
from receiver_runtime.receivers.http.channels.ledger import ChannelLedger, Turn
from receiver_runtime.receivers.http.channels.parts import ChannelOutcome, ChannelPositionError, ChannelRequest, Rows
from receiver_runtime.receivers.keyed_hand_over import HandOverClosedError, KeyedHandOver
from tests.support.searches import examples
from tests.unit.receiver_runtime.receivers.http.channels.channel_log import ChannelBlockLog
from tests.unit.receiver_runtime.rig import HandReceiver, Rig, rig
from tests.unit.receiver_runtime.support import eventually
from tracker_store.blocks.blocks import ChannelMove
from tracker_store.blocks.channels import ChannelKey
from tracker_store.connection.errors import ReceiverFencedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tracker_store.blocks.blocks import BlockHandle

A, B, C = (ChannelKey("", name) for name in "abc")
# One record in this many is no UTF-8, and becomes a dead letter.
BAD = 7


def value(channel: ChannelKey, offset: int) -> bytes:
    text = b"%s:%d" % (channel.name.encode(), offset)
    return text + b"\xff" if offset % BAD == BAD - 1 else text


def request(channel: ChannelKey, begin: int, end: int, rejected: int = 0) -> ChannelRequest:
    """Return a request with the records of a channel's sequence; the last ones could not be parsed."""
    rows = pa.array([value(channel, n) for n in range(begin, end - rejected)], pa.binary()).view(pa.string())
    letters = [DeadLetter(DeadLetterReason.UNPARSABLE, value(channel, n)) for n in range(end - rejected, end)]
    batch = pa.record_batch([rows], names=["value"])
    return ChannelRequest(channel, begin, Rows(batch, 0, batch.num_rows), batch.nbytes, rejected, letters)


class Running:
    """A hand-over, and the answers that it gave."""

    def __init__(self, one: Rig, log: ChannelBlockLog) -> None:
        self.rig = one
        self.log = log
        self.failure: BaseException | None = None
        self.failed: list[ChannelRequest] = []
        self._lock = threading.Lock()
        self._answers: dict[ChannelRequest, ChannelOutcome | ChannelPositionError] = {}
        self.hand_over = ChannelHandOver(one.attached, on_answers=self._answer, on_failed=self._fail)

    def _answer(self, answers: Sequence[tuple[ChannelRequest, ChannelOutcome | ChannelPositionError]]) -> None:
        with self._lock:
            for one, outcome in answers:
                assert one not in self._answers, "a request is answered once"
                if isinstance(outcome, ChannelOutcome):
                    assert outcome.position >= one.end
                    assert self.log.positions[one.channel] >= one.end, "it is registered before it is answered"
                self._answers[one] = outcome

    def _fail(self, error: BaseException, requests: Sequence[ChannelRequest]) -> None:
        self.failure = error
        self.failed += requests

    def answer(self, one: ChannelRequest) -> ChannelOutcome | ChannelPositionError:
        eventually(lambda: one in self._answers, "an answer")
        return self._answers[one]

    def done(self, *requests: ChannelRequest) -> list[tuple[int, int]]:
        """Submit requests; return how many of their records were added and known, of one that was refused (409, P)."""
        self.hand_over.submit(requests)
        outcomes = [self.answer(one) for one in requests]
        return [
            (409, outcome.position)
            if isinstance(outcome, ChannelPositionError)
            else (outcome.added, outcome.duplicates)
            for outcome in outcomes
        ]

    def assert_each_once(self) -> None:
        """Compare what is stored here and elsewhere with the channels' sequences."""
        stored = Counter(self.rig.values())
        letters = Counter(data for _, _, data in self.rig.dead_letters())
        for data in (value(channel, n) for channel, begin, end in self.log.elsewhere for n in range(begin, end)):
            if data.endswith(b"\xff"):
                letters[data] += 1
            else:
                stored[data.decode()] += 1
        wanted = [value(channel, n) for channel, end in self.log.positions.items() for n in range(end)]
        assert stored == Counter(data.decode() for data in wanted if data not in letters)
        assert letters.keys() >= {data for data in wanted if data.endswith(b"\xff")}

    def assert_in_order(self) -> None:
        offsets = defaultdict(list)
        for text in self.rig.values():
            name, _, offset = text.partition(":")
            offsets[name].append(int(offset))
        assert all(found == sorted(found) for found in offsets.values())


@pytest.fixture
def log() -> ChannelBlockLog:
    return ChannelBlockLog()


@pytest.fixture
def running(tmp_path: Path, log: ChannelBlockLog) -> Iterator[Running]:
    with rig(tmp_path, HandReceiver(), log=log) as one:
        made = Running(one, log)
        yield made
        made.hand_over.close()


def test_requests_pipeline_and_known_records_are_left_out(running: Running) -> None:
    assert running.done(request(A, 0, 3), request(A, 3, 5), request(B, 0, 2)) == [(3, 0), (2, 0), (2, 0)]
    assert running.done(request(A, 0, 5), request(A, 4, 6), request(A, 7, 9)) == [(0, 5), (1, 1), (409, 5)]
    running.assert_each_once()


def test_a_request_that_comes_again_waits_for_its_first_copy(running: Running, log: ChannelBlockLog) -> None:
    assert running.done(request(A, 0, 1)) == [(1, 0)]
    log.away = True
    first, again = request(A, 1, 4), request(A, 1, 4)
    running.hand_over.submit([first])
    eventually(lambda: any(block.moves for call in log.calls[1:] for block in call), "a block under way")
    running.hand_over.submit([again])
    log.away = False
    assert running.answer(first) == ChannelOutcome(3, 0, {}, 4)
    assert running.answer(again) == ChannelOutcome(0, 3, {}, 4)
    running.assert_each_once()


def test_a_channel_that_another_receiver_has_moved_is_asked_for_again(running: Running, log: ChannelBlockLog) -> None:
    assert running.done(request(A, 0, 3), request(B, 0, 3)) == [(3, 0), (3, 0)]
    log.register_elsewhere(A, 2)
    # It is not ahead of its turn, though this receiver thought so.
    assert running.done(request(A, 5, 6)) == [(1, 0)]
    log.register_elsewhere(A, 2)
    # The block is refused, and stored again without what the driver log has; its neighbour is not affected. One record
    # that the driver log has is a dead letter here, and counts as that alone.
    assert running.done(request(A, 6, 9), request(B, 3, 4), request(A, 9, 10)) == [(1, 1), (1, 0), (1, 0)]
    log.register_elsewhere(A, 5)
    assert running.done(request(A, 10, 13), request(B, 4, 5)) == [(0, 3), (1, 0)]
    assert log.conflicts == 2
    running.assert_each_once()


def test_records_that_do_not_fit_count_in_the_channel_even_if_none_fits(running: Running) -> None:
    bad = BAD - 1
    assert running.done(request(A, 0, bad)) == [(bad, 0)]
    alone = request(A, bad, bad + 1)
    assert running.done(alone, request(A, bad + 1, bad + 3)) == [(0, 0), (2, 0)]
    assert list(running.answer(alone).misfits) == [0]  # type: ignore[union-attr]
    # Alone in its block.
    assert running.done(request(A, BAD + 2, 2 * BAD - 1)) == [(BAD - 3, 0)]
    assert running.done(request(A, 2 * BAD - 1, 2 * BAD)) == [(0, 0)]
    assert running.log.positions[A] == 2 * BAD
    assert running.done(request(A, 0, 2 * BAD)) == [(0, 2 * BAD)]
    assert [letter for _, _, letter in running.rig.dead_letters()] == [value(A, bad), value(A, 2 * BAD - 1)]
    running.assert_each_once()


def test_a_request_with_unreadable_records_is_taken_whole_or_not_at_all(running: Running) -> None:
    assert running.done(request(A, 0, 4, rejected=2)) == [(2, 0)]
    assert running.done(request(A, 0, 4, rejected=2)) == [(0, 4)]
    assert running.done(request(A, 3, 6, rejected=1)) == [(409, 4)]
    assert running.done(request(A, 4, 6, rejected=1)) == [(1, 0)]
    assert [letter for _, _, letter in running.rig.dead_letters()] == [value(A, 2), value(A, 3), value(A, 5)]
    running.assert_each_once()


def test_a_large_request_is_cut_into_blocks(tmp_path: Path, log: ChannelBlockLog) -> None:
    with rig(tmp_path, HandReceiver(), log=log, max_block_bytes=2000) as one:
        running = Running(one, log)
        assert running.done(request(A, 0, 500), request(B, 0, 1), request(A, 500, 501)) == [
            (500 - 500 // BAD, 0),
            (1, 0),
            (1, 0),
        ]
        assert len(log.chain(1)) > 2
        running.assert_each_once()
        running.assert_in_order()
        running.hand_over.close()


def test_after_a_cut_request_its_channel_is_asked_for_again(tmp_path: Path, log: ChannelBlockLog) -> None:
    with rig(tmp_path, HandReceiver(), log=log, max_block_bytes=2000) as one:
        running = Running(one, log)
        assert running.done(request(A, 0, 500)) == [(500 - 500 // BAD, 0)]
        log.register_elsewhere(A, 6)
        assert running.done(request(A, 506, 508)) == [(2, 0)]
        running.hand_over.close()


def test_a_ledger_is_idle_when_each_part_of_a_range_is_settled() -> None:
    ledger = ChannelLedger()
    ledger.know(A, 0)
    ledger.take(A, 4)
    ledger.divide(A)
    ledger.settle(A, 2)
    assert not ledger.is_idle(A)
    ledger.settle(A, 4)
    assert ledger.is_idle(A)


def test_a_first_request_has_no_duplicates_if_an_answer_is_lost(
    running: Running, log: ChannelBlockLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check blocks, and moves of dead letters alone: a sender would take duplicates for another sender's records."""
    bad = BAD - 1
    log.lose_answers = 1
    assert running.done(request(A, 0, bad)) == [(bad, 0)]
    move = log.move_channels

    def lost(moves: Sequence[ChannelMove]) -> bool:
        move(moves)
        return move(moves)

    monkeypatch.setattr(log, "move_channels", lost)
    alone = request(A, bad, bad + 1)
    assert running.done(alone) == [(0, 0)]
    assert list(running.answer(alone).misfits) == [0]  # type: ignore[union-attr]
    assert running.done(request(B, 0, 2, rejected=2)) == [(0, 0)]
    # It comes again.
    assert running.done(request(A, bad, bad + 1), request(B, 0, 2, rejected=2)) == [(0, 1), (0, 2)]


def test_a_move_of_dead_letters_alone_is_noted_before_it_is_made(
    running: Running, log: ChannelBlockLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[str, Sequence[ChannelMove]]] = []
    writer = running.rig.attached.block_path.writer
    note, move = writer.note_moves, log.move_channels

    def noted(moves: Sequence[ChannelMove]) -> Sequence[BlockHandle]:
        done.append(("note", moves))
        return note(moves)

    def moved(moves: Sequence[ChannelMove]) -> bool:
        done.append(("move", moves))
        return move(moves)

    monkeypatch.setattr(writer, "note_moves", noted)
    monkeypatch.setattr(log, "move_channels", moved)
    assert running.done(request(A, 0, 2, rejected=2)) == [(0, 0)]
    moves = [ChannelMove("", "a", 0, 2)]
    assert done == [("note", moves), ("move", moves)]


def test_a_failure_keeps_no_outcome_back(
    running: Running, log: ChannelBlockLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check requests of one call: one is stored, and the other's channel can't be asked for."""
    assert running.done(request(A, 0, 3), request(B, 0, 3)) == [(3, 0), (3, 0)]

    def fail(channels: Sequence[ChannelKey], *, wait: bool = True) -> list[int]:
        del channels, wait
        raise ZeroDivisionError

    monkeypatch.setattr(log, "channel_positions", fail)
    stored, ahead = request(A, 0, 3), request(B, 5, 6)
    running.hand_over.submit([stored, ahead])
    eventually(lambda: running.failed == [ahead], "the failure")
    assert running.answer(stored) == ChannelOutcome(0, 3, {}, 3)


def test_keys_and_channels_do_not_refuse_each_other(running: Running, log: ChannelBlockLog) -> None:
    keyed = KeyedHandOver(running.rig.attached)
    log.keys.add("known")
    assert running.done(request(A, 0, 1)) == [(1, 0)]
    for n in range(1, 20):
        log.register_elsewhere(A, 1)
        first = keyed.submit(pa.record_batch([pa.array(["k"])], names=["value"]), ["known"])
        second = keyed.submit(pa.record_batch([pa.array([f"k{n}"])], names=["value"]), [f"k{n}"])
        some = [request(A, 2 * n - 1, 2 * n + 1), request(B, n - 1, n)]
        running.hand_over.submit(some)
        outcomes = [running.answer(one) for one in some]
        done = [outcome for outcome in outcomes if isinstance(outcome, ChannelOutcome)]
        assert done[1].duplicates == 0
        assert sum(outcome.added + outcome.duplicates + len(outcome.misfits) for outcome in done) == 3
        assert (first.result(30).duplicates, second.result(30).added) == (1, 1)
    keyed.close()
    assert log.conflicts
    assert Counter(running.rig.values()) == Counter(set(running.rig.values()))


def test_a_fenced_receiver_fails_what_waits(running: Running, log: ChannelBlockLog) -> None:
    assert running.done(request(A, 0, 3)) == [(3, 0)]
    log.fence.add(1)
    one = request(A, 3, 5)
    running.hand_over.submit([one])
    eventually(lambda: running.failed == [one], "the failure")
    assert isinstance(running.failure, ReceiverFencedError)
    with pytest.raises(ReceiverFencedError):
        running.hand_over.submit([request(A, 3, 5)])
    # The thread ends after the failure is told.
    running.hand_over.close()


def test_nothing_is_taken_after_the_end(running: Running) -> None:
    one = request(A, 0, 3)
    running.hand_over.submit([one])
    running.hand_over.close()
    assert running.answer(one) == ChannelOutcome(3, 0, {}, 3)
    with pytest.raises(HandOverClosedError):
        running.hand_over.submit([request(A, 3, 5)])


def drawn_request(drawn: random.Random, at: dict[ChannelKey, int]) -> ChannelRequest:
    """Return a request of a channel: mostly the next one of those that are at `at`; else some again, or too far."""
    channel = drawn.choice([A, B, C])
    begin = max(0, at[channel] + drawn.choice([0, 0, 0, 0, -1, -5, -30, 1, 4]))
    end = begin + drawn.randint(1, 20)
    if begin <= at[channel]:
        at[channel] = max(at[channel], end)
    return request(channel, begin, end)


@pytest.mark.search
@pytest.mark.parametrize("seed", range(examples(16)))
def test_each_record_is_stored_once_whatever_comes_in_which_order(
    tmp_path: Path, log: ChannelBlockLog, seed: int
) -> None:
    drawn = random.Random(seed)
    with rig(tmp_path, HandReceiver(), log=log, max_block_bytes=drawn.choice([1024, 2**20])) as one:
        running = Running(one, log)
        sent: list[ChannelRequest] = []
        at = dict.fromkeys((A, B, C), 0)
        for _ in range(40):
            group = [drawn_request(drawn, at) for _ in range(drawn.randint(1, 5))]
            running.hand_over.submit(group)
            sent += group
            what = drawn.random()
            if what < 0.15:
                log.register_elsewhere(drawn.choice([A, B, C]), drawn.randint(1, 10))
            elif what < 0.25:
                log.lose_answers += 1
            elif what < 0.35:
                log.say_again += 1
            elif what < 0.6:
                # The sender waits, and goes on from where its channels are.
                for request_ in sent[-10:]:
                    running.answer(request_)
                at = {channel: log.positions.get(channel, 0) for channel in at}
        running.hand_over.close()
        for request_ in sent:
            outcome = running.answer(request_)
            if isinstance(outcome, ChannelOutcome):
                count = outcome.added + outcome.duplicates + len(outcome.misfits)
                # A record that did not fit may be known too, when its block was refused.
                assert count >= request_.end - request_.offset
        running.assert_each_once()
        running.assert_in_order()


def test_the_ledger_forgets_idle_channels_and_no_others() -> None:
    ledger = ChannelLedger(most_idle=10)
    channels = [ChannelKey("", str(n)) for n in range(30)]
    for channel in channels:
        ledger.know(channel, 5)
    for channel in channels[:15]:
        assert ledger.turn(channel, 5, 6) is Turn.NEXT
        ledger.take(channel, 6)
    ledger.forget_idle()
    assert ledger.unknown(channels) == channels[15:]
    for channel in channels[:15]:
        assert ledger.turn(channel, 5, 6) is Turn.TAKEN
        ledger.settle(channel, 6)
        assert ledger.turn(channel, 5, 6) is Turn.STORED
    ledger.forget_idle()
    assert len(ledger.unknown(channels)) > 20
