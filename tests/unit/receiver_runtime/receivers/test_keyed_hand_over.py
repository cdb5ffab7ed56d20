"""Check the hand-over of records with keys, with everything real below it except the database."""

from __future__ import annotations

import random
import threading
from collections import Counter
from concurrent.futures import Future, wait
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from receiver_runtime.block_path.records import RecordTypeError
from receiver_runtime.block_path.write_ahead_log import WriteAheadLogError
from receiver_runtime.block_store.frames.frame import SourceRule
from receiver_runtime.block_store.frames.segment import IntactFrame
from receiver_runtime.receivers import keyed_hand_over, storable_keys
from receiver_runtime.receivers.keyed_blocks import Outcome
from receiver_runtime.receivers.keyed_hand_over import HandOverClosedError, KeyedHandOver
from receiver_runtime.watching.exit_codes import ExitCode
from tests.unit.receiver_runtime.rig import HandReceiver, Rig, batch, in_thread, rig
from tests.unit.receiver_runtime.support import ManualClock, MemoryBlockLog, advance_until, eventually
from tracker_store.blocks.blocks import AddOutcome, AddResult, NewBlock
from tracker_store.connection.errors import ReceiverFencedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from receiver_runtime.receivers.keyed_blocks import HandedOver

    # The last element says whether the rows share their keys.
    Submitted = tuple[Future[HandedOver], list[str], list[str | None], bool]

DEADLINE = 30.0


class KeyedBlockLog(MemoryBlockLog):
    """A block log with `add_block`'s rules: a key is stored once, and a block with all of its keys or not at all."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: set[str] = set()
        self.asked: list[list[str]] = []
        # Keys that another receiver adds, once, between the comparison and the insert.
        self.races: set[str] = set()
        self.refusals = 0

    def known_keys(self, keys: Sequence[str], *, wait: bool = True) -> set[str]:
        if not wait and self.away:
            return set()
        self.asked.append(list(keys))
        return self.keys & set(keys)

    def _add(self, receiver_id: int, group: list[NewBlock]) -> AddResult:
        wanted = Counter(key for block in group for key in block.keys)
        assert not [key for key, times in wanted.items() if times > 1], "a key twice in one call adds nothing, for ever"
        chain = self.chains.get(receiver_id, [])
        settled_or_fenced = all(block in chain for block in group) or receiver_id in self.fence
        if not settled_or_fenced and (raced := self.races & wanted.keys()):
            self.races -= raced
            self.keys |= raced
            raise sa.exc.IntegrityError("INSERT", {}, Exception("record_keys"))
        if not settled_or_fenced and self.keys & wanted.keys():
            self.refusals += 1
            return AddResult(receiver_id, AddOutcome.DUPLICATE_KEYS, "some", self.response(receiver_id))
        result = super()._add(receiver_id, group)
        if result.outcome is AddOutcome.ADDED:
            self.keys |= wanted.keys()
        return result


def made(tmp_path: Path, log: KeyedBlockLog, **settings: Any) -> Any:  # noqa: ANN401  a rig's context manager
    return rig(tmp_path, settings.pop("receiver", None) or HandReceiver(), log=log, **settings)


@pytest.fixture
def log() -> KeyedBlockLog:
    return KeyedBlockLog()


@pytest.fixture
def running(tmp_path: Path, log: KeyedBlockLog) -> Iterator[Rig]:
    with made(tmp_path, log) as one:
        yield one


def answer(future: Future[HandedOver]) -> tuple[int, int]:
    result = future.result(DEADLINE)
    return result.added, result.duplicates


def optimistic(hand_over: KeyedHandOver, log: KeyedBlockLog) -> None:
    """Register blocks until the hand-over no longer looks their keys up before it stores them."""
    n = 0
    while True:
        before = len(log.asked)
        assert answer(hand_over.submit(batch(f"warm {n}"), [f"warm {n}"])) == (1, 0)
        n += 1
        if len(log.asked) == before:
            return


def values(one: Rig) -> list[str]:
    return [value for value in one.values() if not value.startswith("warm")]


def test_what_is_answered_is_registered_with_its_keys(running: Rig, log: KeyedBlockLog) -> None:
    hand_over = KeyedHandOver(running.attached)
    seen: list[list[str]] = []
    future = hand_over.submit(batch("a", "b", "c"), pa.array(["1", None, "3"]))
    future.add_done_callback(lambda _: seen.append(running.values()))
    assert answer(future) == (3, 0)
    assert answer(hand_over.submit(batch("d"), None)) == (1, 0)
    hand_over.close()
    # The result is already available in the callback.
    assert seen == [["a", "b", "c"]]
    assert running.values() == ["a", "b", "c", "d"]
    assert log.keys == {"1", "3"}


def test_a_refusal_drops_later_blocks_in_flight_and_all_are_stored_without_known_rows(
    running: Rig, log: KeyedBlockLog
) -> None:
    """Check the optimistic mode: another receiver adds the keys after they were looked up."""
    hand_over = KeyedHandOver(running.attached)
    optimistic(hand_over, log)
    log.away = True
    futures = [hand_over.submit(batch(f"x{n}", f"y{n}"), [f"x{n}", f"y{n}"]) for n in range(3)]
    eventually(lambda: any("x0" in block.keys for block in log.calls[-1]), "the first of them under way")
    log.keys |= {"y0", "x2"}
    log.away = False
    assert [answer(future) for future in futures] == [(1, 1), (2, 0), (1, 1)]
    assert values(running) == ["x0", "x1", "y1", "y2"]
    assert log.refusals
    # The hand-over continues.
    assert answer(hand_over.submit(batch("z"), ["z"])) == (1, 0)
    running.stop()


def test_a_key_that_comes_again_while_it_is_under_way_waits_for_the_first(running: Rig, log: KeyedBlockLog) -> None:
    hand_over = KeyedHandOver(running.attached)
    optimistic(hand_over, log)
    log.away = True
    first = hand_over.submit(batch("a"), ["k"])
    eventually(lambda: log.calls[-1][-1].keys == ("k",), "the first under way")
    again = hand_over.submit(batch("a"), ["k"])
    eventually(lambda: hand_over._queue.rows == 0, "the second taken")
    assert not again.done()
    log.away = False
    assert answer(first) == (1, 0)
    assert answer(again) == (0, 1)
    assert values(running) == ["a"]


def test_a_key_forgotten_by_the_driver_log_is_new(running: Rig, log: KeyedBlockLog) -> None:
    hand_over = KeyedHandOver(running.attached)
    assert answer(hand_over.submit(batch("a"), ["k"])) == (1, 0)
    log.keys.clear()
    assert answer(hand_over.submit(batch("b"), ["k"])) == (1, 0)
    assert running.values() == ["a", "b"]


def test_rows_that_share_a_key_in_one_submit_stay_in_one_block(tmp_path: Path, log: KeyedBlockLog) -> None:
    with made(tmp_path, log, max_block_bytes=1024) as one:
        hand_over = KeyedHandOver(one.attached)
        rows = [f"{n:0100d}" for n in range(60)]
        shared = ["one"] * 30 + [None] * 10 + ["two"] * 20
        assert answer(hand_over.submit(batch(*rows), shared, rows_share_keys=True)) == (60, 0)
        blocks = [block for block in log.chain(1) if block.keys]
        # The blocks are above the maximum size, and have all rows of their key.
        assert [(block.keys, block.records >= least) for block, least in zip(blocks, (30, 20), strict=True)] == [
            (("one",), True),
            (("two",), True),
        ]
        assert answer(hand_over.submit(batch(*rows), shared, rows_share_keys=True)) == (10, 50)
        assert one.values() == rows + rows[30:40]


def test_blocks_have_a_bounded_size_and_a_larger_row_has_its_own_block(tmp_path: Path, log: KeyedBlockLog) -> None:
    with made(tmp_path, log, max_block_bytes=2048) as one:
        hand_over = KeyedHandOver(one.attached)
        rows = ["x" * 100] * 100 + ["y" * 10_000] + ["z" * 100] * 100
        assert answer(hand_over.submit(batch(*rows), [str(n) for n in range(201)])) == (201, 0)
        assert one.values() == rows
        assert sorted(log.keys) == sorted(str(n) for n in range(201))
        assert max(block.records for block in log.chain(1)) < 25


def test_concurrent_submits_share_a_block(running: Rig, log: KeyedBlockLog) -> None:
    hand_over = KeyedHandOver(running.attached)
    log.away = True
    futures = [hand_over.submit(batch(str(n)), [str(n)]) for n in range(500)]
    log.away = False
    assert [answer(future) for future in futures] == [(1, 0)] * 500
    assert len(log.chain(1)) < 50
    assert running.values() == [str(n) for n in range(500)]


def test_a_submit_waits_while_too_many_are_unanswered(running: Rig, log: KeyedBlockLog) -> None:
    hand_over = KeyedHandOver(running.attached, most_in_flight=3)
    log.away = True
    for n in range(3):
        hand_over.submit(batch(str(n)), None)
    taken: list[Future[HandedOver]] = []
    thread, errors = in_thread(lambda: taken.append(hand_over.submit(batch("3"), None)))
    thread.join(0.1)
    assert thread.is_alive()
    log.away = False
    thread.join(DEADLINE)
    assert not errors
    assert answer(taken[0]) == (1, 0)
    assert running.values() == ["0", "1", "2", "3"]


def test_bytes_in_flight_are_bounded_and_a_larger_submit_goes_alone(running: Rig, log: KeyedBlockLog) -> None:
    hand_over = KeyedHandOver(running.attached, most_bytes=1000)
    log.away = True
    large = hand_over.submit(batch("x" * 5000), None)
    taken: list[Future[HandedOver]] = []
    thread, errors = in_thread(lambda: taken.append(hand_over.submit(batch("y"), None)))
    thread.join(0.1)
    assert thread.is_alive()
    log.away = False
    assert answer(large) == (1, 0)
    thread.join(DEADLINE)
    assert not errors
    assert answer(taken[0]) == (1, 0)


def test_a_lost_answer_and_a_race_are_detected(running: Rig, log: KeyedBlockLog) -> None:
    hand_over = KeyedHandOver(running.attached)
    log.away = True
    # While the driver log does not answer, keys are not looked up before storing.
    early = hand_over.submit(batch("early"), ["early"])
    eventually(lambda: log.calls and log.calls[-1][-1].keys == ("early",), "a stored block")
    log.away = False
    assert answer(early) == (1, 0)
    optimistic(hand_over, log)
    log.lose_answers = 1
    assert answer(hand_over.submit(batch("a"), ["a"])) == (1, 0)
    log.races = {"b"}
    assert answer(hand_over.submit(batch("b", "c"), ["b", "c"])) == (1, 1)
    assert values(running) == ["early", "a", "c"]


def test_fenced_nobody_is_acknowledged_and_nothing_more_is_taken(running: Rig, log: KeyedBlockLog) -> None:
    hand_over = KeyedHandOver(running.attached)
    assert answer(hand_over.submit(batch("a"), ["a"])) == (1, 0)
    log.away = True
    futures = [hand_over.submit(batch(str(n)), [str(n)]) for n in range(5)]
    log.fence.add(1)
    log.away = False
    for future in futures:
        with pytest.raises(ReceiverFencedError):
            future.result(DEADLINE)
    with pytest.raises(ReceiverFencedError):
        hand_over.submit(batch("b"), ["b"])
    assert running.end().exit_code is ExitCode.FENCED
    hand_over.close()
    assert running.values() == ["a"]


def test_an_unexpected_error_is_raised_in_all_waiting_submits(running: Rig, log: KeyedBlockLog) -> None:
    hand_over = KeyedHandOver(running.attached)
    log.away = True
    log.known_keys = no_keys  # type: ignore[method-assign]
    futures = [hand_over.submit(batch("a"), None), hand_over.submit(batch("b"), ["b"])]
    for future in futures[1:]:
        with pytest.raises(ConnectionError, match="for good"):
            future.result(DEADLINE)
    log.away = False
    with pytest.raises(ConnectionError, match="for good"):
        hand_over.submit(batch("c"), None)
    hand_over.close()
    wait(futures, DEADLINE)


def no_keys(keys: Sequence[str], *, wait: bool = True) -> set[str]:
    assert not wait
    raise ConnectionError(f"away for good, {len(keys)} keys")


def test_a_stop_drains_and_afterwards_nothing_is_taken(
    tmp_path: Path, log: KeyedBlockLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = HandReceiver()
    clock = ManualClock()
    with rig(tmp_path, receiver, log=log, clock=clock, receiver_stop_timeout=1.0) as one:
        eventually(lambda: receiver.starts, "the start")
        hand_over = KeyedHandOver(one.attached)
        receiver.on_stopping = hand_over.close
        log.away = True
        futures = [hand_over.submit(batch(str(n)), [str(n)]) for n in range(50)]
        in_flight = one.supervisor.block_path.in_flight
        any_since = in_flight.any_since
        looks = 0

        def counted(moment: float) -> bool:
            nonlocal looks
            looks += 1
            return any_since(moment)

        monkeypatch.setattr(in_flight, "any_since", counted)
        one.supervisor.lifecycle.stop("the test says so")
        # These are the waiters of a condition; nothing public shows them.
        waiting = hand_over._changed._waiters  # type: ignore[attr-defined]
        eventually(lambda: len(waiting) == 2, "the hand-over and its close, which wait for the driver log")
        # Ten looks take as long as an on_stop may take itself; it may take longer while it waits for the driver log.
        advance_until(clock, lambda: looks >= 20)
        assert not one.endings
        log.away = False
        assert one.end().drained
        assert not [message for _, message, _ in one.reporter.events if "on_stop" in message]
        assert [answer(future) for future in futures] == [(1, 0)] * 50
        assert one.values() == [str(n) for n in range(50)]
        with pytest.raises(HandOverClosedError):
            hand_over.submit(batch("late"), None)


def test_a_block_refused_after_the_hand_over_failed_does_not_delay_the_stop(tmp_path: Path, log: KeyedBlockLog) -> None:
    """Check a stop with a disk that takes nothing, while other senders' records were already answered."""
    receiver = HandReceiver()
    with made(tmp_path, log, receiver=receiver) as one:
        hand_over = KeyedHandOver(one.attached)
        optimistic(hand_over, log)

        def end() -> None:
            second.exception(DEADLINE)
            one.files.write_faults = []
            one.supervisor.block_path.push_single("plain")
            hand_over.close()

        receiver.on_stopping = end
        log.away = True
        first = hand_over.submit(batch("a"), ["a"])
        eventually(lambda: log.calls and "a" in log.calls[-1][-1].keys, "the first block, under way")
        one.files.write_faults = ["error"] * 100_000
        second = hand_over.submit(batch("b"), ["b"])
        eventually(lambda: any("could not be stored" in event[1] for event in one.reporter.events), "the full disk")
        one.supervisor.lifecycle.stop("the test says so")
        with pytest.raises(WriteAheadLogError):
            second.result(DEADLINE)
        with pytest.raises(WriteAheadLogError):
            first.result(DEADLINE)
        log.keys.add("a")
        log.away = False
        assert one.end().drained
        assert values(one) == ["plain"]


def test_an_invalid_submit_is_refused_at_once_and_takes_nothing(running: Rig) -> None:
    hand_over = KeyedHandOver(running.attached)
    with pytest.raises(RecordTypeError):
        hand_over.submit(pa.record_batch([pa.array([1])], names=["value"]), None)
    with pytest.raises(ValueError, match="2 keys for 1 rows"):
        hand_over.submit(batch("a"), ["1", "2"])
    assert hand_over._queue.unanswered == 0
    assert answer(hand_over.submit(batch(), None)) == (0, 0)
    assert running.values() == []


def test_keys_that_the_driver_log_can_not_hold_are_stored_as_digests(running: Rig, log: KeyedBlockLog) -> None:
    hand_over = KeyedHandOver(running.attached)
    odd = ["nul \0 in it", "ü" * 5000, ""]
    assert answer(hand_over.submit(batch("a", "b", "c"), odd)) == (3, 0)
    assert answer(hand_over.submit(batch("a", "b", "c"), odd)) == (0, 3)
    assert all("\0" not in key and len(key) < 600 for key in log.keys)


def test_blocks_without_keys_are_never_refused_together_with_blocks_with_keys(running: Rig, log: KeyedBlockLog) -> None:
    """A sender that was answered before its record was registered does not send it again."""
    hand_over = KeyedHandOver(running.attached)
    optimistic(hand_over, log)
    lock = threading.Lock()
    plain: list[str] = []

    def push_plain() -> None:
        for n in range(200):
            running.supervisor.block_path.push_single(f"plain {n}")
            with lock:
                plain.append(f"plain {n}")

    thread, errors = in_thread(push_plain)
    futures = []
    for n in range(100):
        futures.append(hand_over.submit(batch(f"k{n}"), [f"k{n}"]))
        if n % 3 == 0:
            log.keys.add(f"k{n + 1}")
        log.races.add(f"k{n + 2}")
    for future in futures:
        future.result(DEADLINE)
    thread.join(DEADLINE)
    running.stop()
    assert not errors
    found = values(running)
    assert [value for value in found if value.startswith("plain")] == plain
    kinds = [
        {frame.header.source_rule for frame in running.store.scan(path) if isinstance(frame, IntactFrame)}
        for path in running.rows.paths.values()
    ]
    assert set().union(*kinds) == {SourceRule.SENT_AGAIN, SourceRule.NOT_SENT_AGAIN}


def test_a_rate_limit_applies_once(tmp_path: Path, log: KeyedBlockLog) -> None:
    with made(tmp_path, log, receiver_max_rate=1000) as one:
        hand_over = KeyedHandOver(one.attached)
        future = hand_over.submit(batch(*map(str, range(300))), list(map(str, range(300))))
        assert answer(future) == (300, 0)
        # At most a tenth of a second's permits are in one block.
        assert max(block.records for block in log.chain(1)) <= 100


@given(st.lists(st.sampled_from(["a", "b", "c", None]), max_size=30))
@settings(deadline=None)
def test_no_cut_separates_rows_with_one_key(keys: list[str | None]) -> None:
    cuts = storable_keys.cuts(pa.array(keys, pa.string()))
    for cut in cuts:
        assert not {key for key in keys[:cut] if key} & {key for key in keys[cut:] if key}
    if cuts:
        assert cuts[-1] == len(keys)
        missing = set(range(1, len(keys))) - set(cuts)
        assert all({key for key in keys[:cut] if key} & {key for key in keys[cut:] if key} for cut in missing)


def test_a_key_that_is_written_as_one_of_forebays_own_is_another_one() -> None:
    # Else the dead letter would count as stored.
    [stored, plain] = storable_keys.storable(["\x1fdead letter 17/1", "dead letter"]).to_pylist()
    assert stored.startswith("sha256:")
    assert plain == "dead letter"


class Trouble:
    """Makes the driver log fail, and adds keys of other receivers."""

    def __init__(self, log: KeyedBlockLog, chance: random.Random) -> None:
        self._log = log
        self._chance = chance
        #: Keys that other receivers added to the log.
        self.elsewhere: set[str] = set()

    def key(self) -> str:
        return f"k{self._chance.randrange(300)}"

    def make(self) -> None:
        chosen = self._chance.randrange(12)
        self._log.away = chosen == 0
        if chosen == 1:
            self._log.lose_answers = 1
        elif chosen == 2:
            self._log.say_again = 1
        elif chosen in (3, 4):
            with self._log._lock:
                fresh = {self.key() for _ in range(8)} - self._log.keys
                if chosen == 3:
                    self._log.keys |= fresh
                    self.elsewhere |= fresh
                else:
                    self._log.races |= fresh


@pytest.mark.parametrize("seed", range(4))
def test_model_of_submits_with_repeated_keys(tmp_path: Path, seed: int) -> None:
    """Submit many batches with keys that come again, and that other receivers add too.

    However answers are lost and keys race: the rows of a key are in the blocks once, from one submit (all of its rows
    if they share it, else one), or in another receiver's blocks. A row without a key is stored as often as it was
    handed over. Submits are answered in order.
    """
    chance = random.Random(seed)
    log = KeyedBlockLog()
    trouble = Trouble(log, chance)
    with made(tmp_path, log, max_block_bytes=1024) as one:
        hand_over = KeyedHandOver(one.attached, most_in_flight=20)
        submits: list[Submitted] = []
        order: list[int] = []
        for number in range(150):
            trouble.make()
            if hand_over._queue.unanswered >= 20:
                log.away = False
            keys = [chance.choice([None, trouble.key(), f"k{number % 300}"]) for _ in range(chance.randrange(12))]
            rows = [f"{number}/{row}/{key}" for row, key in enumerate(keys)]
            shared = chance.random() < 0.5
            future = hand_over.submit(batch(*rows), keys, rows_share_keys=shared)
            future.add_done_callback(partial(noted, order, number))
            submits.append((future, rows, keys, shared))
        log.away = False
        wait([future for future, *_ in submits], DEADLINE)
        hand_over.close()
        one.stop()
        assert order == list(range(150))
        check_model(submits, Counter(one.values()), log.keys, trouble.elsewhere)


def noted(order: list[int], number: int, _: object) -> None:
    order.append(number)


def check_model(submits: Sequence[Submitted], stored: Counter[str], known: set[str], elsewhere: set[str]) -> None:
    assert max(stored.values()) == 1
    by_key: dict[str, set[int]] = {}
    for number, (future, rows, keys, shared) in enumerate(submits):
        result = future.result(0)
        assert result.added == sum(stored[row] for row in rows)
        assert result.added + result.duplicates == len(rows)
        for row, key in zip(rows, keys, strict=True):
            if key is None:
                assert stored[row] == 1
            elif stored[row]:
                by_key.setdefault(key, set()).add(number)
                its = [stored[other] for other, other_key in zip(rows, keys, strict=True) if other_key == key]
                assert sum(its) == (len(its) if shared else 1)
    assert all(len(numbers) == 1 for numbers in by_key.values())
    assert not by_key.keys() & elsewhere
    # Rows that were left out are stored elsewhere under the same key.
    assert {key for _, _, keys, _ in submits for key in keys if key is not None} <= known


def test_rows_whose_key_is_known_without_its_scope_are_left_out(running: Rig, log: KeyedBlockLog) -> None:
    """Check keys of two forms: those registered without a scope count, and are not added."""
    log.keys |= {"2"}
    hand_over = KeyedHandOver(running.attached)
    optimistic(hand_over, log)
    keys, unscoped = pa.array(["s 1", None, "s 2", "s 2"]), pa.array(["1", None, "2", "2"])
    future = hand_over.submit(batch("a", "b", "c", "d"), keys, unscoped_keys=unscoped, rows_share_keys=True)
    assert answer(future) == (2, 2)
    again = hand_over.submit(batch("a", "e"), pa.array(["s 1", "s 3"]), unscoped_keys=pa.array(["1", "3"]))
    assert answer(again) == (1, 1)
    hand_over.close()
    assert values(running) == ["a", "b", "e"]
    assert {key for key in log.keys if not key.startswith("warm")} == {"2", "s 1", "s 3"}


def test_a_submit_of_requests_says_what_was_done_with_the_rows_of_each(tmp_path: Path, log: KeyedBlockLog) -> None:
    log.keys |= {"2"}
    with made(tmp_path, log, max_block_bytes=1024) as one:
        hand_over = KeyedHandOver(one.attached)
        assert hand_over.submit(batch("a", "b"), None, requests=[1, 0, 1]).result(DEADLINE).requests == [
            Outcome(1),
            Outcome(0),
            Outcome(1),
        ]
        rows = [f"{n:0100d}" for n in range(40)]
        keys = ["1"] * 15 + ["2"] * 5 + [None] * 5 + ["3"] * 15
        handed = hand_over.submit(batch(*rows), keys, requests=[15, 5, 5, 15]).result(DEADLINE)
        assert (handed.added, handed.duplicates) == (35, 5)
        assert handed.requests == [Outcome(15), Outcome(0, 5), Outcome(5), Outcome(15)]
        # More than one block, each with all rows of its keys.
        assert [block.keys for block in log.chain(1) if block.keys] == [("1",), ("3",)]
        assert one.values() == ["a", "b", *rows[:15], *rows[20:]]
        with pytest.raises(ValueError, match="requests of 3 rows for 1 rows"):
            hand_over.submit(batch("a"), None, requests=[3])


def test_keys_of_two_scopes_that_are_the_same_without_them_are_both_left_out(running: Rig, log: KeyedBlockLog) -> None:
    log.keys |= {"1"}
    hand_over = KeyedHandOver(running.attached)
    optimistic(hand_over, log)
    keys, unscoped = pa.array(["s 1", "t 1", "t 2"]), pa.array(["1", "1", "2"])
    handed = hand_over.submit(batch("a", "b", "c"), keys, unscoped_keys=unscoped, requests=[1, 1, 1]).result(DEADLINE)
    assert handed.requests == [Outcome(0, 1), Outcome(0, 1), Outcome(1)]
    assert values(running) == ["c"]


def test_many_messages_do_not_wait_for_the_next_blocks_time(
    tmp_path: Path, log: KeyedBlockLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyed_hand_over, "_GATHERING_SECONDS", 2 * DEADLINE)
    with made(tmp_path, log, block_interval=2 * DEADLINE) as one:
        hand_over = KeyedHandOver(one.attached)
        assert answer(hand_over.submit(batch("first"), None)) == (1, 0)
        few = hand_over.submit(batch("a"), None)
        more = [hand_over.submit(batch(f"b{n}"), None) for n in range(keyed_hand_over._MANY_MESSAGES - 2)]
        with pytest.raises(TimeoutError):
            few.result(0.1)
        # A request of many rows is one message.
        last = hand_over.submit(batch(*["c"] * 100), None, requests=[100])
        assert [answer(future) for future in [few, *more, last]] == [(1, 0)] * (len(more) + 1) + [(100, 0)]


def test_a_key_that_comes_again_with_other_content_is_a_dead_letter(running: Rig, log: KeyedBlockLog) -> None:
    hand_over = KeyedHandOver(running.attached, content="value")
    log.away = True
    first = hand_over.submit(batch("a", "b", "c", "a", "d"), ["1", "2", "2", "1", None])
    again = hand_over.submit(batch("a", "e", "f", ""), ["1", "1", "3", "3"])
    log.away = False
    assert (answer(first), answer(again)) == ((3, 1), (1, 1))
    hand_over.close()
    assert running.values() == ["a", "b", "d", "f"]
    assert {(reason, data) for reason, _, data in running.dead_letters()} == {
        ("repeated_key", data) for data in (b"c", b"e", b"")
    }
