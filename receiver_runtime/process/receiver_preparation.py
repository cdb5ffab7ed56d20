"""Turn a declaration into a receiver that may begin: create it, register its columns, note its preferred host.

This runs once per start, before the claim: a failure here fails the receiver with the reason, and nothing was taken
over. It reads nothing from the source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from receiver_runtime.block_store.frames.columns import ColumnsError, columns_of, fingerprint_of
from receiver_runtime.process.receiver_registry import make_receiver
from receiver_runtime.sources.source import SourceError
from tracker_store.blocks.stream_schemas import register_schema
from tracker_store.connection.errors import SchemaConflictError
from tracker_store.receivers.receivers import set_preferred_location

if TYPE_CHECKING:
    from receiver_runtime.reporting.driver_log import DriverLog
    from receiver_runtime.sources.source import Source
    from receiver_runtime.supervisor.receiver import Receiver


def prepare_receiver(source: Source, *, receiver_id: int, driver_log: DriverLog) -> Receiver:
    """Return the receiver of a source, after registering its columns as a version of its stream's.

    Raises:
        SourceError: it can't be made here, or its columns can't be stored beside those of the stream's blocks; a
            restart does not help.
    """
    receiver = make_receiver(source)
    try:
        columns = columns_of(receiver.record_schema)
    except ColumnsError as error:
        raise SourceError(f"receiver {source.address}: {error}") from error
    try:
        driver_log.until_answered(
            "register the receiver's columns",
            lambda c: register_schema(c, receiver_id=receiver_id, fingerprint=fingerprint_of(columns), columns=columns),
        )
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
    return receiver
