"""Fill receivers with blocks by SQL, for tests of how statements grow: thousands of rows in milliseconds."""

from __future__ import annotations

import sqlalchemy as sa

from tests.support.driver_log.log import NOON


def fill(connection: sa.Connection, *, blocks: int) -> None:
    """Give every receiver a marker and blocks one second apart from NOON; directly into the table, for speed."""
    connection.execute(
        sa.text("""
            INSERT INTO forebay.blocks (receiver_id, sequence, epoch, added_at, records, bytes, total_records,
                total_bytes, segment_id, "offset", length, crc32c)
            SELECT r.id, n, 1, CAST(:noon AS timestamptz) + n * interval '1 s', m.records, 10 * m.records, n - 1,
                10 * (n - 1), m.handle, m.handle, m.handle, m.handle
            FROM forebay.receivers r, generate_series(1, :blocks) AS n,
                LATERAL (SELECT CASE n WHEN 1 THEN 0 ELSE 1 END, CASE n WHEN 1 THEN NULL ELSE n END)
                    AS m(records, handle)
            ON CONFLICT DO NOTHING
        """),
        {"noon": NOON, "blocks": blocks},
    )
