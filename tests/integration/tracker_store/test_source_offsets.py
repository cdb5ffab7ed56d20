"""Test source positions and idempotency keys: they go in with their block, or not at all (W01; notes 4, 5)."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import psycopg2.errors
import pytest
import sqlalchemy as sa

from tests.support.driver_log.log import Log, add, block, claim_anew, give_segments, make_log, wait_until_blocked
from tracker_store.blocks.blocks import (
    ORIGIN,
    AddOutcome,
    Claim,
    NewBlock,
    OffsetLink,
    Position,
    add_blocks,
    known_keys,
    open_partition,
    raise_for_outcome,
)
from tracker_store.connection.engine import connect
from tracker_store.connection.errors import DuplicateKeysError, OffsetConflictError
from tracker_store.schema.states import LinkKind

if TYPE_CHECKING:
    from collections.abc import Iterator

START = 500


@pytest.fixture
def log(connection: sa.Connection) -> Log:
    log = make_log(connection, receivers=3)
    give_segments(connection, *log.receiver_ids)
    return log


@pytest.fixture
def first(log: Log) -> Claim:
    return claim_anew(log.connection, log.receiver_ids[0])


@pytest.fixture
def second(log: Log) -> Claim:
    return claim_anew(log.connection, log.receiver_ids[1])


def link(
    from_offset: int,
    to_offset: int,
    *,
    partition: str = "0",
    generation: int = 0,
    kind: LinkKind = LinkKind.BLOCK,
    source: str = "orders",
) -> OffsetLink:
    return OffsetLink(source, partition, generation, from_offset, to_offset, kind)


def origin(to_offset: int, *, generation: int, partition: str = "0") -> OffsetLink:
    return link(ORIGIN, to_offset, generation=generation, kind=LinkKind.ORIGIN, partition=partition)


def linked(claimed: Claim, sequence: int, *links: OffsetLink, records: int = 10, offset: int | None = None) -> NewBlock:
    return replace(block(claimed, sequence, records=records, offset=offset), links=links)


def keyed(claimed: Claim, sequence: int, *keys: str) -> NewBlock:
    return replace(block(claimed, sequence), keys=keys)


def opened(log: Log, receiver_id: int, start: int = START, partition: str = "0") -> Position:
    return open_partition(
        log.connection, receiver_id=receiver_id, source="orders", partition=partition, start_offset=start
    )


def chain(log: Log, partition: str = "0") -> list[tuple[int, int, int, str, int, int]]:
    """Return the partition's links as (generation, from, to, kind, receiver, sequence)."""
    return [
        tuple(row)
        for row in log.connection.execute(
            sa.text(
                "SELECT generation, from_offset, to_offset, kind, receiver_id, sequence FROM forebay.block_offsets "
                "WHERE partition = :partition ORDER BY generation, from_offset"
            ),
            {"partition": partition},
        )
    ]


def sequences(log: Log, receiver_id: int) -> list[int]:
    return list(
        log.connection.execute(
            sa.text("SELECT sequence FROM forebay.blocks WHERE receiver_id = :r ORDER BY 1"), {"r": receiver_id}
        ).scalars()
    )


@contextmanager
def uncommitted(engine: sa.Engine, added: NewBlock) -> Iterator[psycopg2.extensions.connection]:
    """Add `added` in another process's call that is not committed yet; the caller commits."""
    [moved] = added.links or (link(0, 1),)
    raw = engine.raw_connection()
    try:
        driver = raw.driver_connection
        assert driver is not None
        driver.autocommit = False
        handle = added.handle
        with driver.cursor() as cursor:
            cursor.execute(
                "SELECT outcome FROM forebay.add_block(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], "
                "%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::integer[], %s, %s, "
                "%s::integer[], %s::bigint[], %s::bigint[], %s, %s::integer[], %s::text[])",
                [
                    *([value] for value in (added.receiver_id, added.epoch, added.sequence)),
                    *([value] for value in (added.records, added.bytes)),
                    *([value] for value in (handle.segment_id, handle.offset, handle.length, handle.crc32c)),
                    [1] if added.links else [],
                    *([value] for value in (moved.source, moved.partition, moved.generation)),
                    *([value] for value in (moved.from_offset, moved.to_offset, moved.kind.value)),
                    [1 for _ in added.keys],
                    list(added.keys),
                ],
            )
            assert cursor.fetchall() == [("added",)]
        yield driver
    finally:
        raw.invalidate()


# -- the chain ---------------------------------------------------------------------------------------------------------


def test_w01_a_blocks_position_is_committed_with_the_block(log: Log, first: Claim) -> None:
    assert opened(log, first.receiver_id) == Position(0, START)
    assert add(log.connection, linked(first, 2, link(500, 510))).outcome is AddOutcome.ADDED
    assert opened(log, first.receiver_id, start=0) == Position(0, 510)
    assert chain(log) == [
        (0, ORIGIN, 500, "origin", first.receiver_id, 0),
        (0, 500, 510, "block", first.receiver_id, 2),
    ]


def test_w01_a_refused_position_stores_neither_block_nor_link(log: Log, first: Claim) -> None:
    opened(log, first.receiver_id)
    before = chain(log)
    result = add(log.connection, linked(first, 2, link(490, 510)))
    assert result.outcome is AddOutcome.OFFSET_CONFLICT
    with pytest.raises(OffsetConflictError, match=r"orders/0: block link 490\.\.510 .* the log is at 500"):
        raise_for_outcome(result)
    assert (sequences(log, first.receiver_id), chain(log)) == ([1], before)


def test_w01_a_retry_after_a_lost_answer_moves_the_position_once(log: Log, first: Claim) -> None:
    opened(log, first.receiver_id)
    group = [linked(first, 2, link(500, 510)), linked(first, 3, link(510, 520))]
    assert add(log.connection, *group).outcome is AddOutcome.ADDED
    stored = chain(log)
    assert add(log.connection, *group).outcome is AddOutcome.ALREADY_ADDED
    assert chain(log) == stored
    assert add(log.connection, linked(first, 4, link(520, 521))).outcome is AddOutcome.ADDED


def test_the_chain_of_links_is_per_partition_and_not_per_receiver(log: Log, first: Claim, second: Claim) -> None:
    """Check a rebalance there and back: a receiver with an older position is refused and gets the log's."""
    opened(log, first.receiver_id)
    add(log.connection, linked(first, 2, link(500, 510)))
    assert opened(log, second.receiver_id) == Position(0, 510)
    add(log.connection, linked(second, 2, link(510, 520)))
    stale = add(log.connection, linked(first, 3, link(510, 530)))
    assert stale.outcome is AddOutcome.OFFSET_CONFLICT
    assert "the log is at 520" in (stale.detail or "")
    assert opened(log, first.receiver_id) == Position(0, 520)
    assert add(log.connection, linked(first, 3, link(520, 530))).outcome is AddOutcome.ADDED
    assert [row[1:3] for row in chain(log)] == [(ORIGIN, 500), (500, 510), (510, 520), (520, 530)]


def test_a_link_requires_an_origin_before_it(log: Log, first: Claim) -> None:
    result = add(log.connection, linked(first, 2, link(500, 510)))
    assert result.outcome is AddOutcome.OFFSET_CONFLICT
    assert "the log is at no position" in (result.detail or "")


def test_two_receivers_that_start_at_latest_together_get_one_position(engine: sa.Engine, log: Log) -> None:
    """Check with receivers that looked up "latest" separately, e.g. at 500 and 507: one origin counts for all."""
    together = threading.Barrier(3)

    def start(number: int) -> Position:
        with connect(engine) as connection:
            together.wait(10)
            return open_partition(
                connection,
                receiver_id=log.receiver_ids[number],
                source="orders",
                partition="0",
                start_offset=500 + 7 * number,
            )

    with ThreadPoolExecutor(3) as pool:
        positions = set(pool.map(start, range(3)))
    assert len(positions) == 1
    [(_, _, start_offset, kind, _, _)] = chain(log)
    assert (positions, kind) == ({Position(0, start_offset)}, "origin")


def test_an_origin_waits_for_one_in_flight_and_returns_its_position(
    engine: sa.Engine, log: Log, first: Claim, second: Claim
) -> None:
    with (
        uncommitted(engine, linked(first, 2, origin(500, generation=0))) as other,
        ThreadPoolExecutor(1) as pool,
        connect(engine) as connection,
    ):
        waiting = pool.submit(
            open_partition,
            connection,
            receiver_id=second.receiver_id,
            source="orders",
            partition="0",
            start_offset=507,
        )
        wait_until_blocked(log.connection)
        other.commit()
        assert waiting.result(10) == Position(0, 500)


def test_a_reset_backwards_opens_the_next_generation(log: Log, first: Claim, second: Claim) -> None:
    opened(log, first.receiver_id)
    opened(log, second.receiver_id)
    add(log.connection, linked(first, 2, link(500, 510)))
    reset = linked(first, 3, origin(0, generation=1), link(0, 5, generation=1))
    assert add(log.connection, reset).outcome is AddOutcome.ADDED
    assert opened(log, second.receiver_id) == Position(1, 5)
    # Refused are the old generation, a generation opened twice, and one that skips a number.
    for refused in (link(510, 520), origin(0, generation=1), origin(0, generation=3), link(5, 9, generation=2)):
        assert add(log.connection, linked(second, 2, refused)).outcome is AddOutcome.OFFSET_CONFLICT, refused
    assert add(log.connection, linked(second, 2, link(5, 9, generation=1))).outcome is AddOutcome.ADDED


def test_a_lost_range_is_a_link_of_its_own(log: Log, first: Claim) -> None:
    opened(log, first.receiver_id)
    lost = link(500, 700, kind=LinkKind.LOST)
    assert add(log.connection, linked(first, 2, lost, link(700, 710))).outcome is AddOutcome.ADDED
    lost_again = linked(first, 3, link(710, 800, kind=LinkKind.LOST), link(800, 801))
    assert add(log.connection, lost_again).outcome is AddOutcome.ADDED
    assert [row[1:4] for row in chain(log)] == [
        (ORIGIN, 500, "origin"),
        (500, 700, "lost"),
        (700, 710, "block"),
        (710, 800, "lost"),
        (800, 801, "block"),
    ]


def test_several_blocks_of_one_call_continue_in_one_partition(log: Log, first: Claim) -> None:
    opened(log, first.receiver_id)
    opened(log, first.receiver_id, start=0, partition="eu-west")
    group = [
        linked(first, 2, link(500, 510), link(0, 3, partition="eu-west")),
        linked(first, 3, link(510, 515)),
        linked(first, 4, link(515, 520), link(3, 4, partition="eu-west")),
    ]
    assert add(log.connection, *group).outcome is AddOutcome.ADDED
    assert [(row[1], row[5]) for row in chain(log)] == [(ORIGIN, 0), (500, 2), (510, 3), (515, 4)]
    assert [(row[1], row[5]) for row in chain(log, "eu-west")] == [(ORIGIN, 0), (0, 2), (3, 4)]


def test_a_break_within_a_call_adds_none_of_the_receivers_blocks(log: Log, first: Claim, second: Claim) -> None:
    opened(log, first.receiver_id)
    results = add_blocks(
        log.connection,
        [linked(first, 2, link(500, 510)), linked(first, 3, link(511, 520)), block(second, 2)],
    )
    assert [result.outcome for result in results] == [AddOutcome.OFFSET_CONFLICT, AddOutcome.ADDED]
    assert "the log is at 510" in (results[0].detail or "")
    assert (sequences(log, first.receiver_id), len(chain(log))) == ([1], 1)


def test_the_first_of_two_receivers_in_one_call_gets_the_partition(log: Log, first: Claim, second: Claim) -> None:
    opened(log, first.receiver_id)
    results = add_blocks(log.connection, [linked(second, 2, link(500, 505)), linked(first, 2, link(500, 510))])
    assert [(r.receiver_id, r.outcome) for r in results] == [
        (first.receiver_id, AddOutcome.ADDED),
        (second.receiver_id, AddOutcome.OFFSET_CONFLICT),
    ]


def test_streams_and_sources_have_their_own_positions(log: Log, first: Claim) -> None:
    opened(log, first.receiver_id)
    add(log.connection, linked(first, 2, link(500, 510)))
    other = make_log(log.connection, pipeline="other", stream="other")
    [receiver_id] = set(other.receiver_ids) - set(log.receiver_ids)
    assert opened(log, receiver_id, start=3) == Position(0, 3)
    of_another_source = open_partition(
        log.connection, receiver_id=first.receiver_id, source="refunds", partition="0", start_offset=9
    )
    assert of_another_source == Position(0, 9)
    assert opened(log, first.receiver_id) == Position(0, 510)


def test_the_later_of_two_receivers_that_race_for_a_partition_adds_no_block(
    engine: sa.Engine, log: Log, first: Claim, second: Claim
) -> None:
    """Check the case that both compare before either commits.

    The key refuses the call as a whole; for each block alone the outcome has a name.
    """
    opened(log, first.receiver_id)
    bystander = claim_anew(log.connection, log.receiver_ids[2])
    group = [linked(second, 2, link(500, 505)), block(bystander, 2)]
    with (
        uncommitted(engine, linked(first, 2, link(500, 510))) as other,
        ThreadPoolExecutor(1) as pool,
        connect(engine) as connection,
    ):
        waiting = pool.submit(add_blocks, connection, group)
        wait_until_blocked(log.connection)
        other.commit()
        with pytest.raises(sa.exc.IntegrityError, match="block_offsets"):
            waiting.result(10)
    assert sequences(log, second.receiver_id) == sequences(log, bystander.receiver_id) == [1]
    assert [add(log.connection, alone).outcome for alone in group] == [AddOutcome.OFFSET_CONFLICT, AddOutcome.ADDED]
    assert [row[1:3] for row in chain(log)] == [(ORIGIN, 500), (500, 510)]


def test_a_rival_that_rolls_back_leaves_the_partition_to_the_other(
    engine: sa.Engine, log: Log, first: Claim, second: Claim
) -> None:
    opened(log, first.receiver_id)
    with (
        uncommitted(engine, linked(first, 2, link(500, 510))) as other,
        ThreadPoolExecutor(1) as pool,
        connect(engine) as connection,
    ):
        waiting = pool.submit(add, connection, linked(second, 2, link(500, 505)))
        wait_until_blocked(log.connection)
        other.rollback()
        assert waiting.result(10).outcome is AddOutcome.ADDED
    assert sequences(log, first.receiver_id) == [1]


def test_receivers_that_exchange_partitions_put_each_position_in_one_block(engine: sa.Engine, log: Log) -> None:
    """Check with receivers that each believe that they own all partitions, as in a rebalance that never settles."""
    partitions = [str(number) for number in range(4)]

    def read(receiver_id: int) -> list[tuple[str, int, int]]:
        acknowledged = []
        with connect(engine) as connection:
            claimed = claim_anew(connection, receiver_id)
            sequence = claimed.sequence + 1
            for turn in range(40):
                partition = partitions[(turn + receiver_id) % len(partitions)]
                at = open_partition(
                    connection, receiver_id=receiver_id, source="orders", partition=partition, start_offset=0
                )
                moved = link(at.offset, at.offset + 1 + turn % 3, partition=partition)
                try:
                    outcome = add(connection, linked(claimed, sequence, moved)).outcome
                except sa.exc.IntegrityError as error:
                    assert isinstance(error.orig, psycopg2.errors.UniqueViolation)  # noqa: PT017  the race itself
                    continue
                if outcome is AddOutcome.ADDED:
                    acknowledged.append((partition, moved.from_offset, moved.to_offset))
                    sequence += 1
                else:
                    assert outcome is AddOutcome.OFFSET_CONFLICT
        return acknowledged

    with ThreadPoolExecutor(3) as pool:
        acknowledged = [entry for entries in pool.map(read, log.receiver_ids) for entry in entries]
    for partition in partitions:
        links = [row for row in chain(log, partition) if row[3] == "block"]
        assert sorted((a, b) for p, a, b in acknowledged if p == partition) == [row[1:3] for row in links]
        position = 0
        for _, from_offset, to_offset, _, receiver_id, sequence in links:
            assert from_offset == position
            position = to_offset
            assert sequence in sequences(log, receiver_id)


# -- the order of outcomes (docs/explanation/driver-log.md) ------------------------------------------------------------


def test_already_added_comes_before_fenced_and_before_every_conflict(log: Log, first: Claim) -> None:
    opened(log, first.receiver_id)
    sent = replace(linked(first, 2, link(500, 510)), keys=("k",))
    add(log.connection, sent)
    assert add(log.connection, sent).outcome is AddOutcome.ALREADY_ADDED
    successor = claim_anew(log.connection, first.receiver_id)
    add(log.connection, linked(successor, 4, link(510, 520)))
    assert add(log.connection, sent).outcome is AddOutcome.ALREADY_ADDED


def test_fenced_comes_before_conflict(log: Log, first: Claim) -> None:
    opened(log, first.receiver_id)
    add(log.connection, block(first, 2))
    claim_anew(log.connection, first.receiver_id)
    # Number 2 is another block, 3 is the successor's marker; link and key are wrong as well.
    for sequence in (2, 3):
        wrong = replace(linked(first, sequence, link(1, 2), offset=7), keys=("k",))
        assert add(log.connection, wrong).outcome is AddOutcome.FENCED


def test_conflict_comes_before_offset_conflict(log: Log, first: Claim) -> None:
    opened(log, first.receiver_id)
    add(log.connection, block(first, 2))
    assert add(log.connection, linked(first, 2, link(1, 2), offset=7)).outcome is AddOutcome.CONFLICT


def test_offset_conflict_comes_before_duplicate_keys(log: Log, first: Claim) -> None:
    opened(log, first.receiver_id)
    add(log.connection, keyed(first, 2, "k"))
    both = replace(linked(first, 3, link(1, 2)), keys=("k",))
    assert add(log.connection, both).outcome is AddOutcome.OFFSET_CONFLICT


def test_duplicate_keys_and_offset_conflict_come_before_a_gap(log: Log, first: Claim) -> None:
    opened(log, first.receiver_id)
    add(log.connection, keyed(first, 2, "k"))
    assert add(log.connection, keyed(first, 9, "k")).outcome is AddOutcome.DUPLICATE_KEYS
    assert add(log.connection, linked(first, 9, link(1, 2))).outcome is AddOutcome.OFFSET_CONFLICT
    assert add(log.connection, keyed(first, 9, "other")).outcome is AddOutcome.GAP


def test_a_predecessor_committed_after_the_inserts_snapshot_is_again_and_not_a_gap(
    engine: sa.Engine, log: Log, first: Claim
) -> None:
    """Check with a trigger that holds the INSERT between its snapshot and its read while the predecessor commits."""
    log.connection.execute(
        sa.text(
            "CREATE FUNCTION wait_for_test() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "IF current_setting('application_name') = 'held' THEN PERFORM pg_advisory_lock_shared(1); END IF; "
            "RETURN NULL; END $$"
        )
    )
    log.connection.execute(
        sa.text(
            "CREATE TRIGGER wait_for_test BEFORE INSERT ON forebay.blocks "
            "FOR EACH STATEMENT EXECUTE FUNCTION wait_for_test()"
        )
    )
    log.connection.execute(sa.text("SELECT pg_advisory_lock(1)"))
    with connect(engine) as held, ThreadPoolExecutor(1) as pool:
        held.execute(sa.text("SET application_name = 'held'"))
        waiting = pool.submit(add, held, block(first, 3), block(first, 4))
        wait_until_blocked(log.connection)
        assert add(log.connection, block(first, 2)).outcome is AddOutcome.ADDED
        log.connection.execute(sa.text("SELECT pg_advisory_unlock(1)"))
        assert waiting.result(10).outcome is AddOutcome.AGAIN
        assert add(held, block(first, 3), block(first, 4)).outcome is AddOutcome.ADDED
        held.invalidate()


# -- idempotency keys --------------------------------------------------------------------------------------------------


def test_a_known_key_refuses_the_block_and_names_itself(log: Log, first: Claim, second: Claim) -> None:
    assert add(log.connection, keyed(first, 2, "a", "b")).outcome is AddOutcome.ADDED
    result = add(log.connection, keyed(second, 2, "b", "c"))
    assert (result.outcome, result.detail) == (AddOutcome.DUPLICATE_KEYS, "b")
    with pytest.raises(DuplicateKeysError, match=r"^b\."):
        raise_for_outcome(result)
    assert sequences(log, second.receiver_id) == [1]
    assert add(log.connection, keyed(second, 2, "c")).outcome is AddOutcome.ADDED


def test_keys_are_per_stream(log: Log, first: Claim) -> None:
    add(log.connection, keyed(first, 2, "a"))
    other = make_log(log.connection, pipeline="other", stream="other")
    [receiver_id] = set(other.receiver_ids) - set(log.receiver_ids)
    assert add(log.connection, keyed(claim_anew(log.connection, receiver_id), 2, "a")).outcome is AddOutcome.ADDED


def test_w02_a_retry_of_a_block_with_keys_is_already_added_and_no_duplicate(log: Log, first: Claim) -> None:
    group = [keyed(first, 2, "a"), keyed(first, 3, "b")]
    assert add(log.connection, *group).outcome is AddOutcome.ADDED
    assert add(log.connection, *group).outcome is AddOutcome.ALREADY_ADDED


def test_the_later_of_two_receivers_that_race_with_one_key_is_refused(
    engine: sa.Engine, log: Log, first: Claim, second: Claim
) -> None:
    """Check with a sender that got no answer and tried the other receiver at once."""
    with (
        uncommitted(engine, keyed(first, 2, "a")) as other,
        ThreadPoolExecutor(1) as pool,
        connect(engine) as connection,
    ):
        waiting = pool.submit(add, connection, keyed(second, 2, "a", "b"))
        wait_until_blocked(log.connection)
        other.commit()
        with pytest.raises(sa.exc.IntegrityError, match="record_keys"):
            waiting.result(10)
    assert sequences(log, second.receiver_id) == [1]
    assert add(log.connection, keyed(second, 2, "a", "b")).outcome is AddOutcome.DUPLICATE_KEYS


def test_a_key_twice_in_a_call_adds_nothing(log: Log, first: Claim) -> None:
    """Check this because no answer could say which of the two to write; the code that makes blocks omits the second."""
    with pytest.raises(sa.exc.IntegrityError, match="record_keys"):
        add(log.connection, keyed(first, 2, "a"), keyed(first, 3, "a"))
    assert sequences(log, first.receiver_id) == [1]


def test_many_keys_are_compared_by_the_index_even_with_a_plan_for_the_empty_table(log: Log, first: Claim) -> None:
    """Check this because comparing each key with all would take longer than the statement timeout."""
    for sequence in range(2, 10):
        assert add(log.connection, keyed(first, sequence, f"{sequence}")).outcome is AddOutcome.ADDED
        assert known_keys(log.connection, receiver_id=first.receiver_id, keys=["2", "x"]) == {"2"}
    for sequence in range(10, 13):
        keys = [f"{sequence}/{n}" for n in range(8_000)]
        assert known_keys(log.connection, receiver_id=first.receiver_id, keys=keys) == set()
        assert add(log.connection, keyed(first, sequence, *keys)).outcome is AddOutcome.ADDED
        assert known_keys(log.connection, receiver_id=first.receiver_id, keys=keys) == set(keys)
