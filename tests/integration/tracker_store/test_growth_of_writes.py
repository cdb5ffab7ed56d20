"""Test that what runs per batch and per block grows with what it changes: rows are counted, never time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from tests.support.driver_log.filled_receivers import fill
from tests.support.driver_log.log import INTERVAL, NOON, block, claim_anew, give_segments, make_log
from tests.support.postgres.statement_cost import NestedStatement, visited_rows
from tracker_store.blocks.blocks import ORIGIN, OffsetLink, add_blocks
from tracker_store.schema.states import LinkKind

if TYPE_CHECKING:
    from collections.abc import Iterable


@pytest.mark.parametrize("limit", ["NULL", "3000"], ids=["whole", "limited"])
@pytest.mark.parametrize("settings", ["", "SET plan_cache_mode = force_custom_plan"], ids=["generic", "custom"])
def test_allocation_grows_with_the_receivers_and_no_faster(
    connection: sa.Connection, settings: str, limit: str
) -> None:
    visited = []
    for receivers in (50, 400):
        log = make_log(connection, receivers=receivers)
        fill(connection, blocks=20)
        connection.execute(
            sa.text("""
                INSERT INTO forebay.cursors (consumer_id, receiver_id, next_sequence)
                SELECT :pipeline, id, 2
                FROM forebay.receivers
                ON CONFLICT DO NOTHING
            """),
            {"pipeline": log.pipeline_id},
        )
        statement = NestedStatement(
            connection,
            "allocate_blocks_to_batch",
            begins="WITH RECURSIVE waiting",
            variables={
                "pipeline": ("bigint", str(log.pipeline_id)),
                "at_time": ("timestamptz", f"'{NOON + INTERVAL}'"),
                "locked.stream_ids": ("bigint[]", f"ARRAY[{log.stream_id}]"),
                "max_records": ("bigint", limit),
                "max_bytes": ("bigint", "NULL"),
            },
        )
        connection.exec_driver_sql(settings or "SELECT 1")
        connection.exec_driver_sql("BEGIN")
        visited.append(visited_rows(statement.nodes()))
        connection.exec_driver_sql("ROLLBACK")
    assert visited[1] < 12 * visited[0], visited


def array(values: Iterable[object]) -> str:
    """Return an array as a literal."""
    return "'{" + ",".join(map(str, values)) + "}'"


@pytest.mark.parametrize(
    "begins",
    [
        "SELECT string_agg(format('%s/%s",
        "SELECT string_agg(k.key",
        "INSERT INTO block_offsets",
        "INSERT INTO record_keys",
    ],
    ids=["broken links", "known keys", "links", "keys"],
)
def test_a_receiver_s_links_and_keys_are_not_looked_for_among_those_of_the_others(
    connection: sa.Connection, begins: str
) -> None:
    visited = []
    for total in (10, 1_000):
        numbers = array(range(1, total + 1))
        statement = NestedStatement(
            connection,
            "add_block",
            begins=begins,
            variables={
                "stream": ("bigint", "1"),
                "sequences": ("bigint[]", numbers),
                "link_blocks": ("integer[]", numbers),
                "link_sources": ("text[]", array(["orders"] * total)),
                "link_partitions": ("text[]", numbers),
                "link_generations": ("integer[]", array(["0"] * total)),
                "link_froms": ("bigint[]", array(["-1"] * total)),
                "link_tos": ("bigint[]", array(["5"] * total)),
                "link_kinds": ("text[]", array(["origin"] * total)),
                "key_blocks": ("integer[]", numbers),
                "keys": ("text[]", numbers),
                "sent.receiver": ("bigint", "1"),
                "sent.lo": ("integer", "1"),
                "sent.hi": ("integer", "1"),
                "sent.links": ("integer[]", "ARRAY[1]"),
                "sent.keys": ("integer[]", "ARRAY[1]"),
            },
        )
        connection.exec_driver_sql("BEGIN")
        visited.append(visited_rows(statement.nodes()))
        connection.exec_driver_sql("ROLLBACK")
    assert visited[0] == visited[1], visited


def test_a_call_with_links_and_keys_of_many_receivers_adds_each_with_its_own(connection: sa.Connection) -> None:
    log = make_log(connection, receivers=30)
    blocks = []
    for receiver in log.receiver_ids:
        claimed = claim_anew(connection, receiver)
        for number in (2, 3):
            links = tuple(
                OffsetLink("orders", f"{receiver}-{number}-{part}", 0, ORIGIN, part, LinkKind.ORIGIN)
                for part in range(2)
            )
            keys = tuple(f"{receiver}/{number}/{key}" for key in range(3))
            blocks.append(replace(block(claimed, number), links=links, keys=keys))
    give_segments(connection, *log.receiver_ids)
    # The last receiver's first: the blocks come in the order of the sender, not in that of receivers.
    results = add_blocks(
        connection, [each for pair in zip(blocks[-2::-2], blocks[-1::-2], strict=True) for each in pair]
    )
    assert {result.outcome for result in results} == {"added"}
    links_of = connection.execute(
        sa.text("SELECT receiver_id, sequence, partition FROM forebay.block_offsets ORDER BY receiver_id, partition")
    ).all()
    assert [tuple(row) for row in links_of] == [
        (receiver, number, f"{receiver}-{number}-{part}")
        for receiver in log.receiver_ids
        for number in (2, 3)
        for part in range(2)
    ]
    keys_of = connection.execute(sa.text("SELECT receiver_id, sequence, key FROM forebay.record_keys")).all()
    assert sorted(map(tuple, keys_of)) == sorted(
        (receiver, number, f"{receiver}/{number}/{key}")
        for receiver in log.receiver_ids
        for number in (2, 3)
        for key in range(3)
    )
