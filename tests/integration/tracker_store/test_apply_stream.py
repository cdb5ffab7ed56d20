"""Check that a stream and its receivers are declared in one transaction, and that two callers agree."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa

from tests.support.driver_log.log import make_log
from tracker_store.batches.pipelines import apply_stream, list_streams
from tracker_store.connection.engine import connect

SOURCE: dict[str, Any] = {"source": {}, "settings": {}}


def receivers(connection: sa.Connection) -> list[tuple[int, int, bool]]:
    """Return (ordinal, assignment, removed) of every receiver."""
    rows = connection.execute(
        sa.text("SELECT ordinal, assignment, removed_at IS NOT NULL FROM forebay.receivers ORDER BY ordinal")
    )
    return [(row[0], row[1], row[2]) for row in rows]


def test_a_declaration_that_is_interrupted_changes_nothing(connection: sa.Connection) -> None:
    """Check this because a stream with a new declaration and the old receivers was never declared."""
    make_log(connection, receivers=2)
    before = receivers(connection)
    # It refuses the last of the writes, as a time-out or a lost server would.
    connection.exec_driver_sql(
        "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN RAISE EXCEPTION 'interrupted'; END$$"
    )
    connection.exec_driver_sql(
        "CREATE TRIGGER refuse BEFORE UPDATE OF removed_at ON forebay.receivers FOR EACH ROW "
        "WHEN (NEW.removed_at IS NOT NULL) EXECUTE FUNCTION public.refuse()"
    )
    with pytest.raises(sa.exc.DBAPIError, match="interrupted"):
        apply_stream(connection, name="lines", declaration={**SOURCE, "new": 1}, receivers=1)
    [stream] = list_streams(connection)
    assert (stream.version, stream.declaration) == (1, SOURCE)
    assert receivers(connection) == before
    connection.exec_driver_sql("DROP TRIGGER refuse ON forebay.receivers")
    apply_stream(connection, name="lines", declaration={**SOURCE, "new": 1}, receivers=1)
    assert [removed for _, _, removed in receivers(connection)] == [False, True]


def test_an_unchanged_declaration_changes_nothing(connection: sa.Connection) -> None:
    log = make_log(connection, receivers=2)
    before = receivers(connection)
    assert apply_stream(connection, name="lines", declaration=SOURCE, receivers=2) == log.stream_id
    assert receivers(connection) == before
    assert list_streams(connection)[0].version == 1


def test_callers_that_declare_one_stream_at_once_declare_it_once_each(
    engine: sa.Engine, connection: sa.Connection
) -> None:
    def declare(count: int) -> int:
        with connect(engine) as mine:
            return apply_stream(mine, name="lines", declaration={**SOURCE, "count": count}, receivers=count)

    with ThreadPoolExecutor(4) as pool:
        ids = set(pool.map(declare, [1, 2, 3, 4] * 5))
    assert len(ids) == 1
    [stream] = list_streams(connection)
    assert stream.receivers == stream.declaration["count"], "the receivers are those of the last declaration"
