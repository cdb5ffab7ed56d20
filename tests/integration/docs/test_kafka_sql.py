"""Check that the statements of the how-to on Kafka run and show what the page says."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.driver_log.log import INTERVAL, NOON, add, block, claim_anew, make_log
from tracker_store.batches.input_metadata import record_input_metadata
from tracker_store.blocks.blocks import OffsetLink, open_partition
from tracker_store.schema.states import LinkKind

if TYPE_CHECKING:
    import sqlalchemy as sa

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "sources" / "kafka.md"


def test_its_statements_run(connection: sa.Connection) -> None:
    positions, inputs = re.findall(r"^```sql\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    log = make_log(connection, stream="orders")
    claimed = claim_anew(connection, log.receiver_ids[0])
    open_partition(connection, receiver_id=claimed.receiver_id, source="orders", partition="0", start_offset=100)
    # What is stored about the topic itself is not a position.
    open_partition(
        connection, receiver_id=claimed.receiver_id, source="orders", partition="topic id of 0", start_offset=7
    )
    links = (
        OffsetLink("orders", "0", 0, 100, 130, LinkKind.LOST),
        OffsetLink("orders", "0", 0, 130, 150),
    )
    add(connection, replace(block(claimed, 2), links=links))
    assert list(map(tuple, connection.exec_driver_sql(positions))) == [("orders", "0", 0, 150, 30)]
    connection.exec_driver_sql(f"UPDATE forebay.blocks SET added_at = '{NOON.isoformat()}'")
    log.tracker.allocate_blocks_to_batch(NOON + INTERVAL)
    assert record_input_metadata(connection, log.pipeline_id, NOON + INTERVAL) == 1
    inputs = inputs.replace("2026-01-31 12:00:00Z", (NOON + INTERVAL).isoformat())
    assert list(map(tuple, connection.exec_driver_sql(inputs))) == [("orders", "0", 0, 100, 149, 30)]
