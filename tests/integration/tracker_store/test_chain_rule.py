"""A block goes in only after the receiver's newest row, and only if that row is the one before it, of its own epoch.

Three statements call the one function that spells this rule, and two go on after them (docs/explanation/driver-log.md).
Each way of sending blocks below ends in other ones of them, and all ways must answer each case alike.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from tests.support.driver_log.log import GIVEN_SEGMENTS, Log, block, claim_anew, give_segments, make_log
from tracker_store.blocks.blocks import AddOutcome, Claim, NewBlock, OffsetLink, add_blocks, open_partition
from tracker_store.connection.engine import connect, create_engine
from tracker_store.receivers.processes import heartbeat, register_process
from tracker_store.receivers.receivers import placements
from tracker_store.schema.states import ProcessKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from forebay.testing.postgres import TestServer

_SOURCE = "topic"


@pytest.fixture(scope="module")
def shared(postgres_server: TestServer) -> Iterator[sa.Connection]:
    """Make one database for all cases: each looks at receivers of its own alone."""
    with postgres_server.database() as url:
        engine = create_engine(url, application_name="tests", pool_size=1)
        with connect(engine) as connection:
            yield connection
        engine.dispose()


@pytest.fixture(scope="module")
def numbers() -> Iterator[int]:
    return itertools.count(1)


@pytest.fixture
def log(shared: sa.Connection, numbers: Iterator[int]) -> Log:
    number = next(numbers)
    log = make_log(shared, receivers=2, pipeline=f"words{number}", stream=f"lines{number}")
    log = replace(
        log, receiver_ids=[row.receiver_id for row in placements(shared) if row.stream_name == f"lines{number}"]
    )
    give_segments(shared, *log.receiver_ids)
    return log


@dataclass(frozen=True)
class Way:
    """One way of sending `length` blocks of a receiver; `send` returns that receiver's outcome."""

    length: int
    send: Callable[[Log, Sequence[NewBlock]], AddOutcome]


def _plain(log: Log, blocks: Sequence[NewBlock]) -> AddOutcome:
    [result] = add_blocks(log.connection, blocks)
    return result.outcome


def _linked(log: Log, blocks: Sequence[NewBlock]) -> AddOutcome:
    """Send each block with a link of a partition of its own, so that no link refuses it."""
    linked = []
    for sent in blocks:
        partition = f"{sent.sequence}/{sent.handle.offset}"
        open_partition(
            log.connection, receiver_id=sent.receiver_id, source=_SOURCE, partition=partition, start_offset=0
        )
        linked.append(replace(sent, links=(OffsetLink(_SOURCE, partition, 0, 0, 10),)))
    return _plain(log, linked)


def _keyed(log: Log, blocks: Sequence[NewBlock]) -> AddOutcome:
    return _plain(log, [replace(sent, keys=(f"{sent.sequence}/{sent.handle.offset}",)) for sent in blocks])


def _with_another_receiver(log: Log, blocks: Sequence[NewBlock]) -> AddOutcome:
    """Send the blocks in a call that adds two blocks of another receiver, which must go in whatever happens here."""
    other = claim_anew(log.connection, log.receiver_ids[1])
    theirs = [block(other, other.sequence + 1), block(other, other.sequence + 2)]
    ours, added = add_blocks(log.connection, [*blocks, *theirs])
    assert added.outcome is AddOutcome.ADDED
    return ours.outcome


WAYS = {
    "add_one_block": Way(1, _plain),
    "add_one_block, with a link": Way(1, _linked),
    "add_block, a receiver after the other": Way(1, _keyed),
    "add_block, a receiver after the other, several blocks": Way(3, _keyed),
    "add_block, with links": Way(3, _linked),
    "add_block, all receivers at once": Way(1, _with_another_receiver),
    "add_block, all receivers at once, several blocks": Way(3, _with_another_receiver),
    "add_block, one receiver's blocks at once": Way(3, _plain),
}


def _clean_up(log: Log, receiver_id: int) -> None:
    """Delete every block of the receiver before its newest row, as clean-up does: markers and the newest row stay."""
    for statement in (
        """
        UPDATE forebay.receivers SET low_mark = (SELECT max(sequence) - 1 FROM forebay.blocks WHERE receiver_id = :r)
        WHERE id = :r
        """,
        """
        DELETE FROM forebay.blocks b USING forebay.receivers r
        WHERE r.id = :r AND b.receiver_id = r.id AND b.segment_id IS NOT NULL AND b.sequence <= r.low_mark
        """,
    ):
        log.connection.execute(sa.text(statement), {"r": receiver_id})


@dataclass(frozen=True)
class Case:
    """What happens before the blocks are sent, which blocks those are, and the outcome."""

    outcome: AddOutcome
    taken_over: bool = False
    added_before: bool = False
    cleaned_up: bool = False
    first: int = 2  # the marker has sequence 1
    other_offset: bool = False
    later_epoch: bool = False


CASES = {
    "next to the newest row": Case(AddOutcome.ADDED),
    "sent a second time": Case(AddOutcome.ALREADY_ADDED, added_before=True),
    "sent a second time, after a take-over": Case(AddOutcome.ALREADY_ADDED, added_before=True, taken_over=True),
    "sent a second time, after a clean-up": Case(AddOutcome.ALREADY_ADDED, added_before=True, cleaned_up=True),
    "sent a second time, after a take-over and a clean-up": Case(
        AddOutcome.ALREADY_ADDED, added_before=True, taken_over=True, cleaned_up=True
    ),
    "other blocks under taken numbers": Case(AddOutcome.CONFLICT, added_before=True, other_offset=True),
    "after a take-over": Case(AddOutcome.FENCED, taken_over=True),
    "after a take-over, behind its marker": Case(AddOutcome.FENCED, taken_over=True, first=3),
    "after a take-over, with its marker missing between": Case(AddOutcome.FENCED, taken_over=True, first=9),
    "the block before it is missing": Case(AddOutcome.GAP, first=3),
    "an epoch that is not claimed yet": Case(AddOutcome.GAP, later_epoch=True),
}


def _chain(log: Log, receiver_id: int) -> list[tuple[int, ...]]:
    statement = "SELECT sequence, epoch, records, total_records, total_bytes FROM forebay.blocks WHERE receiver_id = :r"
    return [tuple(row) for row in log.connection.execute(sa.text(f"{statement} ORDER BY sequence"), {"r": receiver_id})]


def _blocks(claimed: Claim, case: Case, length: int) -> list[NewBlock]:
    return [
        block(
            claimed,
            case.first + n,
            offset=7_000 + n if case.other_offset else None,
            epoch=claimed.epoch + 10**9 if case.later_epoch else None,
        )
        for n in range(length)
    ]


@pytest.mark.parametrize("lost", ["no row", "another receiver's row", "a later epoch's row"])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_no_way_of_sending_adds_a_block_into_a_segment_that_the_log_has_lost(log: Log, way: Way, lost: str) -> None:
    """Check after a failover to a standby without the row, which may give its id to another segment."""
    claimed = claim_anew(log.connection, log.receiver_ids[0])
    its = {"given": GIVEN_SEGMENTS + claimed.receiver_id, "epoch": claimed.epoch, "other": log.receiver_ids[1]}
    statement = {
        "no row": "DELETE FROM forebay.log_segments WHERE id = :given",
        "another receiver's row": "UPDATE forebay.log_segments SET receiver_id = :other WHERE id = :given",
        "a later epoch's row": "UPDATE forebay.log_segments SET epoch = :epoch + 1 WHERE id = :given",
    }[lost]
    log.connection.execute(sa.text(statement), its)
    sent = _blocks(claimed, Case(AddOutcome.GAP, first=2), way.length)
    assert way.send(log, sent) is AddOutcome.GAP
    assert [row[0] for row in _chain(log, claimed.receiver_id)] == [claimed.sequence]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_every_way_of_sending_blocks_keeps_the_rule(log: Log, way: Way, case: Case) -> None:
    claimed = claim_anew(log.connection, log.receiver_ids[0])
    if case.added_before:
        before = Case(AddOutcome.ADDED, first=case.first)
        assert way.send(log, _blocks(claimed, before, way.length)) is AddOutcome.ADDED
    if case.taken_over:
        claim_anew(log.connection, claimed.receiver_id)
    if case.cleaned_up:
        _clean_up(log, claimed.receiver_id)
    chain = _chain(log, claimed.receiver_id)
    assert way.send(log, _blocks(claimed, case, way.length)) is case.outcome
    if case.outcome is AddOutcome.ADDED:
        added = [(2 + n, claimed.epoch, 10, 10 * (n + 1), 100 * (n + 1)) for n in range(way.length)]
        assert _chain(log, claimed.receiver_id) == [*chain, *added]
    else:
        assert _chain(log, claimed.receiver_id) == chain


def test_a_claim_and_a_heartbeat_say_which_server_and_timeline_answered(log: Log) -> None:
    claimed = claim_anew(log.connection, log.receiver_ids[0])
    process = register_process(log.connection, kind=ProcessKind.RECEIVER, name="r", host="h", pid=1)
    responses = heartbeat(log.connection, process_id=process, receiver_ids=log.receiver_ids)
    identifier = log.connection.execute(sa.text("SELECT system_identifier FROM pg_control_system()")).scalar_one()
    assert {claimed.server, *(response.server for response in responses)} == {f"{identifier}/1"}


def test_the_rule_is_part_of_each_statement_that_calls_it(log: Log) -> None:
    """A call of its own for each block would cost what the statement costs."""
    plan = log.connection.exec_driver_sql(
        "EXPLAIN SELECT p.sequence FROM unnest(ARRAY[1, 2]) AS r(id) "
        "CROSS JOIN LATERAL forebay.predecessor(r.id, 2, 1) AS p"
    ).scalars()
    lines = "\n".join(plan)
    assert "Index Scan Backward using blocks_pkey" in lines
    assert "Function Scan on predecessor" not in lines
