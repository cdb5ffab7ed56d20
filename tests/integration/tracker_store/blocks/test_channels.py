"""Test channels: each moves in its block's transaction from exactly where it is, or the block does not go in."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from tests.support.driver_log.log import Log, block, claim_anew, give_segments, make_log
from tracker_store.blocks.blocks import AddOutcome, ChannelMove, add_blocks
from tracker_store.blocks.channels import ChannelKey, channel_positions, list_channels, move_channels
from tracker_store.connection.engine import connect
from tracker_store.connection.errors import DriverLogUnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracker_store.blocks.blocks import AddResult, Claim, NewBlock


@pytest.fixture
def log(connection: sa.Connection) -> Log:
    log = make_log(connection, receivers=4)
    give_segments(connection, *log.receiver_ids)
    return log


def move(channel: str, begin: int, end: int, sender: str = "") -> ChannelMove:
    return ChannelMove(sender, channel, begin, end)


def moved(claimed: Claim, sequence: int, *moves: ChannelMove) -> NewBlock:
    return replace(block(claimed, sequence), moves=moves)


def add(log: Log, *blocks: NewBlock) -> list[AddResult]:
    return add_blocks(log.connection, blocks)


def outcomes(log: Log, *blocks: NewBlock) -> list[AddOutcome]:
    return [result.outcome for result in add(log, *blocks)]


def positions(log: Log, *channels: str, sender: str = "") -> list[int]:
    keys = [ChannelKey(sender, channel) for channel in channels]
    return channel_positions(log.connection, receiver_id=log.receiver_ids[2], channels=keys)


def test_a_channel_moves_with_its_block_and_only_from_where_it_is(log: Log) -> None:
    first, second = (claim_anew(log.connection, receiver_id) for receiver_id in log.receiver_ids[:2])
    assert positions(log, "a", "b") == [0, 0]
    assert outcomes(log, moved(first, 2, move("a", 0, 10)), moved(first, 3, move("a", 10, 15), move("b", 0, 2))) == [
        AddOutcome.ADDED
    ]
    assert positions(log, "b", "a", "c") == [2, 15, 0]
    # One of its channels is elsewhere: nothing goes in, and another receiver's block of the same call does.
    [stale, good] = add(
        log, moved(first, 4, move("b", 2, 4), move("a", 10, 20)), moved(second, 2, move("a", 15, 16), move("c", 0, 1))
    )
    assert (stale.outcome, stale.detail) == (AddOutcome.CHANNEL_CONFLICT, "a 10..20, the log is at 15")
    assert good.outcome is AddOutcome.ADDED
    assert positions(log, "a", "b", "c") == [16, 2, 1]
    assert outcomes(log, moved(first, 4, move("b", 2, 4), move("a", 16, 20))) == [AddOutcome.ADDED]
    # The second call of the same block moves nothing.
    assert outcomes(log, moved(first, 4, move("b", 2, 4), move("a", 16, 20))) == [AddOutcome.ALREADY_ADDED]
    assert positions(log, "a", "b", "c") == [20, 4, 1]
    rows = [(row.channel, row.position, row.receiver) for row in list_channels(log.connection, "lines")]
    assert rows == [("a", 20, 1), ("b", 4, 1), ("c", 1, 2)]
    assert list_channels(log.connection, "other") == []


def test_a_fenced_process_moves_no_channel(log: Log) -> None:
    first = claim_anew(log.connection, log.receiver_ids[0])
    assert outcomes(log, moved(first, 2, move("a", 0, 10))) == [AddOutcome.ADDED]
    claim_anew(log.connection, log.receiver_ids[0])
    assert outcomes(log, moved(first, 3, move("a", 10, 20), move("b", 0, 1))) == [AddOutcome.FENCED]
    assert positions(log, "a", "b") == [10, 0]


def test_a_sender_that_gets_a_token_goes_on_where_it_was_without(log: Log) -> None:
    claimed = claim_anew(log.connection, log.receiver_ids[0])
    assert outcomes(log, moved(claimed, 2, move("a", 0, 10))) == [AddOutcome.ADDED]
    assert positions(log, "a", "b", sender="env:TOKEN") == [10, 0]
    assert outcomes(log, moved(claimed, 3, move("a", 10, 12, "env:TOKEN"))) == [AddOutcome.ADDED]
    assert positions(log, "a", sender="env:TOKEN") == [12]
    # Two senders' channels of one name are two.
    assert positions(log, "a", sender="env:OTHER") == [10]
    assert positions(log, "a") == [10]


def test_channels_move_without_a_block_all_or_none(log: Log) -> None:
    claimed = claim_anew(log.connection, log.receiver_ids[0])
    assert outcomes(log, moved(claimed, 2, move("a", 0, 10))) == [AddOutcome.ADDED]
    receiver_id = log.receiver_ids[1]
    assert not move_channels(log.connection, receiver_id=receiver_id, moves=[move("b", 0, 5), move("a", 9, 12)])
    assert positions(log, "a", "b") == [10, 0]
    assert move_channels(log.connection, receiver_id=receiver_id, moves=[move("b", 0, 5), move("a", 10, 12)])
    assert positions(log, "a", "b") == [12, 5]


def test_receivers_that_move_the_same_channels_at_once_add_each_range_once(log: Log, engine: sa.Engine) -> None:
    """Check that no range of a channel is in two blocks, and that calls with many channels don't deadlock."""
    names = [f"c{n}" for n in range(8)]
    keys = [ChannelKey("", name) for name in names]

    def extend(number: int) -> list[tuple[str, int, int]]:
        drawn = random.Random(number)
        added: list[tuple[str, int, int]] = []
        with connect(engine) as connection:
            claimed = claim_anew(connection, log.receiver_ids[number])
            sequence = claimed.sequence + 1
            while len(added) < 150:
                at = dict(zip(names, channel_positions(connection, receiver_id=1, channels=keys), strict=True))
                some = drawn.sample(names, 3)
                moves = [move(name, at[name], at[name] + drawn.randint(1, 9)) for name in some]
                try:
                    [result] = add_blocks(connection, [moved(claimed, sequence, *moves)])
                except DriverLogUnavailableError:
                    # Another one moved a channel behind the comparison: the same block is sent again, and is named.
                    [result] = add_blocks(connection, [moved(claimed, sequence, *moves)])
                assert result.outcome in (AddOutcome.ADDED, AddOutcome.CHANNEL_CONFLICT)
                if result.outcome is AddOutcome.ADDED:
                    sequence += 1
                    added += [(one.channel, one.from_offset, one.to_offset) for one in moves]
        return added

    with ThreadPoolExecutor(3) as threads:
        added = sorted(one for some in threads.map(extend, range(3)) for one in some)
    ends = dict.fromkeys(names, 0)
    for name, begin, end in added:
        assert begin == ends[name]
        ends[name] = end
    assert positions(log, *names) == [ends[name] for name in names]


@pytest.fixture
def slow_moves(log: Log) -> None:
    """Make a session hold the rows of the channels that it moves for a while."""
    log.connection.execute(
        sa.text(
            "CREATE FUNCTION forebay.wait_a_moment() RETURNS trigger LANGUAGE plpgsql AS "
            "$$BEGIN PERFORM pg_sleep(0.3); RETURN NEW; END$$"
        )
    )
    log.connection.execute(
        sa.text(
            "CREATE TRIGGER wait_a_moment AFTER UPDATE ON forebay.channels "
            "FOR EACH ROW EXECUTE FUNCTION forebay.wait_a_moment()"
        )
    )


def at_once(engine: sa.Engine, *calls: Sequence[NewBlock]) -> list[list[AddOutcome] | str]:
    """Make calls at the same time, each in a session; return their outcomes, or which error each met."""
    begin = threading.Barrier(len(calls))

    def call(blocks: Sequence[NewBlock]) -> list[AddOutcome] | str:
        with connect(engine) as connection:
            begin.wait(60)
            try:
                return [result.outcome for result in add_blocks(connection, blocks)]
            except DriverLogUnavailableError as error:
                return str(error)

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(call, calls))


@pytest.mark.usefixtures("slow_moves")
def test_of_two_receivers_that_move_a_channel_at_once_one_adds(log: Log, engine: sa.Engine) -> None:
    """Check the race that Postgres versions decide differently, whose update by a row's place waited for another."""
    first, second = (claim_anew(log.connection, receiver_id) for receiver_id in log.receiver_ids[:2])
    assert outcomes(log, moved(first, 2, move("a", 0, 5))) == [AddOutcome.ADDED]
    found = at_once(engine, [moved(first, 3, move("a", 5, 9))], [moved(second, 2, move("a", 5, 9))])
    assert found.count([AddOutcome.ADDED]) == 1
    assert positions(log, "a") == [9]


@pytest.mark.usefixtures("slow_moves")
def test_calls_that_move_channels_in_different_orders_do_not_deadlock(log: Log, engine: sa.Engine) -> None:
    a, b = move("a", 0, 5), move("z", 0, 5)
    claims = [claim_anew(log.connection, receiver_id) for receiver_id in log.receiver_ids]
    assert outcomes(log, moved(claims[0], 2, a, b)) == [AddOutcome.ADDED]
    a, b = move("a", 5, 6), move("z", 5, 6)
    found = at_once(
        engine,
        [moved(claims[0], 3, b), moved(claims[1], 2, a)],
        [moved(claims[2], 2, a), moved(claims[3], 2, b)],
    )
    conflicts = [AddOutcome.CHANNEL_CONFLICT] * 2
    assert sorted(found, key=str) == sorted([[AddOutcome.ADDED] * 2, conflicts], key=str)
