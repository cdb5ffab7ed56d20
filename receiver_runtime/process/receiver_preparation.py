"""Turn a declaration into a receiver that may begin: create it, register its columns, note its preferred host.

This runs once per start, before the claim: a failure here fails the receiver with the reason, and nothing was taken
over. It reads nothing from the source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from receiver_runtime.block_path.text_check import TextCheck
from receiver_runtime.block_store.frames.columns import columns_of, fingerprint_of, union
from receiver_runtime.process.receiver_registry import make_receiver
from receiver_runtime.record_formats.typed_rows import TypedRows
from receiver_runtime.sources.source import SourceError
from tracker_store.blocks.stream_schemas import register_schema, schemas_of_stream
from tracker_store.connection.errors import SchemaConflictError
from tracker_store.receivers.receivers import set_preferred_location

if TYPE_CHECKING:
    from receiver_runtime.block_path.text_check import RowCheck
    from receiver_runtime.block_store.frames.columns import Columns
    from receiver_runtime.reporting.driver_log import DriverLog
    from receiver_runtime.sources.records.declared import Records
    from receiver_runtime.sources.source import Source
    from receiver_runtime.supervisor.receiver import Receiver


def prepare_receiver(
    source: Source, records: Records | None, *, receiver_id: int, stream_id: int, driver_log: DriverLog
) -> tuple[Receiver, RowCheck]:
    """Return the receiver of a source, and what its rows become, after registering the columns of its blocks.

    Raises:
        SourceError: it can't be made here, or its columns can't be stored beside those of the stream's blocks; a
            restart does not help.
    """

    def register(columns: Columns) -> None:
        driver_log.until_answered(
            "register the receiver's columns",
            lambda c: register_schema(c, receiver_id=receiver_id, fingerprint=fingerprint_of(columns), columns=columns),
        )

    def known() -> Columns:
        versions = driver_log.until_answered("read the stream's columns", lambda c: schemas_of_stream(c, stream_id))
        return union(*(version.columns for version in versions))

    receiver = make_receiver(source)
    try:
        rows = _rows(receiver, source, records)
        if records is not None and any(part.columns_grow for part in records.parts):
            assert isinstance(rows, TypedRows)
            rows.grow(known, register)
        columns = columns_of(rows.schema)
    except ValueError as error:
        raise SourceError(f"receiver {source.address}: {error}") from error
    try:
        register(columns)
    except SchemaConflictError as error:
        raise SourceError(str(error)) from error
    wish, bound = receiver.preferred_location, receiver.is_bound_to_host
    driver_log.until_answered(
        "note the host that the receiver asks for",
        lambda c: set_preferred_location(
            c,
            receiver_id=receiver_id,
            host=wish,
            bound_to_host=source.is_bound_to_host if bound is None else bound,
        ),
    )
    return receiver, rows


def _rows(receiver: Receiver, source: Source, records: Records | None) -> RowCheck:
    """Return what rows of the receiver become. Raises ValueError, such as ColumnsError: blocks can't have them."""
    if records is None:
        return TextCheck(receiver.record_schema)
    return TypedRows(records, receiver.record_schema, source.record_column or receiver.record_column)
