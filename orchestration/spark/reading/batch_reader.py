"""Read from the driver log what the planner of the `forebay` format needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestration.declarations.settings import Settings
from receiver_runtime.block_store.frames.columns import arrow_schema, columns_of, union
from receiver_runtime.block_store.roots import root_names
from receiver_runtime.sources.records.registry import parse_records
from receiver_runtime.sources.source import SourceError
from receiver_runtime.sources.source_registry import parse_source
from tracker_store.batches.pipelines import StreamRow, get_pipeline, list_streams, unknown_stream
from tracker_store.batches.received_block_tracker import AllocatedBlock, ReceivedBlockTracker
from tracker_store.blocks.block_stores import attached_identities
from tracker_store.blocks.stream_schemas import schemas_of_stream
from tracker_store.connection.engine import connect, create_engine
from tracker_store.schema.declarations import StreamDeclaration

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime, timedelta

    import sqlalchemy as sa

    from receiver_runtime.sources.records.declared import Records
    from receiver_runtime.sources.source import Source

APPLICATION = "forebay spark planner"


def _stream(connection: sa.Connection, name: str) -> StreamRow:
    for row in list_streams(connection):
        if row.name == name:
            return row
    raise unknown_stream(connection, name)


def planner_engine(database_url: str | None) -> sa.Engine:
    """Return an engine with one connection to the driver log; the default URL is the environment's."""
    return create_engine(database_url or Settings().require_database_url(), application_name=APPLICATION, pool_size=1)


def blocks_of_input(
    database_url: str | None,
    *,
    block_store: str,
    pipeline: str,
    batch_time: datetime,
    stream: str,
    window: timedelta | None = None,
) -> tuple[list[AllocatedBlock], dict[str, list[str]]]:
    """Return the blocks of one input of a batch, or of the `window` that ends with it, by (receiver, sequence).

    Also returns the expected identities of the roots of `block_store`.

    Raises NotAppliedError, and BlocksNotRetainedError if clean-up has deleted a block of the batch.
    """
    engine = planner_engine(database_url)
    try:
        with connect(engine) as connection:
            tracker = ReceivedBlockTracker(connection, get_pipeline(connection, pipeline).pipeline_id)
            stream_id = _stream(connection, stream).stream_id
            blocks = (
                tracker.whole_blocks_of_batch_and_stream(batch_time, stream_id)
                if window is None
                else tracker.get_blocks_of_window_and_stream(batch_time, window, stream_id)
            )
            return blocks, attached_identities(connection, root_names(block_store))
    finally:
        engine.dispose()


def columns_of_stream(database_url: str | None, stream: str) -> Sequence[tuple[str, str]]:
    """Return a stream's columns as (name, Arrow type): the union of all versions that its receivers registered.

    Before the first receiver has started, the columns are those of the source kind, or of the receiver's class if that
    can be imported.

    Raises:
        NotAppliedError: there is no such stream.
        SourceError: no receiver has started, and its class is not installed here.
    """
    engine = planner_engine(database_url)
    try:
        with connect(engine) as connection:
            return columns_of_row(connection, _stream(connection, stream))
    finally:
        engine.dispose()


def columns_of_row(connection: sa.Connection, row: StreamRow) -> Sequence[tuple[str, str]]:
    """Return the columns as ``columns_of_stream`` does, for a stream row that was already read."""
    registered = [schema.columns for schema in schemas_of_stream(connection, row.stream_id)]
    declared = StreamDeclaration.of(row.declaration)
    source = parse_source(declared.source)
    records = None if declared.records is None else parse_records(declared.records)
    if not registered:
        return declared_columns(source, row.name, records)
    return union(*registered, _columns_of_kind(source, records))


def declared_columns(source: Source, stream: str, records: Records | None) -> Sequence[tuple[str, str]]:
    """Return a stream's columns before any receiver has started, without the driver log. Raises SourceError."""
    if records is not None and not records.columns:
        raise SourceError(
            f"stream {stream!r}: its records bring their columns, and no receiver has begun yet: start it, or declare "
            "the schema too"
        )
    if source.columns:
        return _columns_of_kind(source, records)
    try:
        receiver_class = source.load()
    except SourceError as error:
        raise SourceError(
            f"stream {stream!r}: no receiver of it has begun yet, so that its columns are not known: "
            f"start it (`forebay status`), or install its package here too ({error})"
        ) from error
    schema = getattr(receiver_class, "schema", None)
    columns = columns_of(arrow_schema(getattr(receiver_class, "columns", ())) if schema is None else schema)
    if records is None:
        return columns
    try:
        return records.block_columns(columns, getattr(receiver_class, "record_column", ""))
    except ValueError as error:
        raise SourceError(f"stream {stream!r}: records: {error}") from error


def _columns_of_kind(source: Source, records: Records | None) -> Sequence[tuple[str, str]]:
    """Return the columns that the declaration says, without those that only a receiver's own class knows."""
    return source.columns if records is None else records.block_columns(source.columns, source.record_column)
