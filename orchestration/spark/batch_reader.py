"""What the planner of the `forebay` format asks the driver log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestration.settings import Settings
from receiver_runtime.sources.source_registry import parse_source
from tracker_store.engine import connect, create_engine
from tracker_store.errors import NotAppliedError
from tracker_store.pipelines import StreamRow, get_pipeline, list_streams
from tracker_store.received_block_tracker import AllocatedBlock, ReceivedBlockTracker

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime, timedelta

    import sqlalchemy as sa

APPLICATION = "forebay spark planner"


def _stream(connection: sa.Connection, name: str) -> StreamRow:
    for row in list_streams(connection):
        if row.name == name:
            return row
    raise NotAppliedError(f"stream {name!r} is not in the driver log")


def _engine(database_url: str | None) -> sa.Engine:
    return create_engine(database_url or Settings().require_database_url(), application_name=APPLICATION, pool_size=1)


def blocks_of_input(
    database_url: str | None, *, pipeline: str, batch_time: datetime, stream: str, window: timedelta | None = None
) -> list[AllocatedBlock]:
    """The blocks of one input of a batch, or of the `window` that ends with it, in the order of (receiver, sequence).

    Raises NotAppliedError.
    """
    engine = _engine(database_url)
    try:
        with connect(engine) as connection:
            tracker = ReceivedBlockTracker(connection, get_pipeline(connection, pipeline).pipeline_id)
            stream_id = _stream(connection, stream).stream_id
            if window is not None:
                return tracker.get_blocks_of_window_and_stream(batch_time, window, stream_id)
            return tracker.get_blocks_of_batch_and_stream(batch_time, stream_id)
    finally:
        engine.dispose()


def columns_of_stream(database_url: str | None, stream: str) -> Sequence[tuple[str, str]]:
    """A stream's columns as (name, Arrow type). Raises NotAppliedError."""
    engine = _engine(database_url)
    try:
        with connect(engine) as connection:
            return parse_source(_stream(connection, stream).declaration["source"]).columns
    finally:
        engine.dispose()
