"""Make the columns of log records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from forebay_contrib.opentelemetry.columns import arrays
from forebay_contrib.opentelemetry.values import text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord


def log_columns(records: Sequence[LogRecord]) -> tuple[list[pa.Array], None]:
    """Return the columns of log records, a row each. Raises ValueError for one that is none."""
    time, time_nano = arrays.times([one.time_unix_nano for one in records])
    observed, observed_nano = arrays.times([one.observed_time_unix_nano for one in records])
    columns = [
        time,
        time_nano,
        observed,
        observed_nano,
        pa.array([one.severity_number or None for one in records], pa.int32()),
        arrays.texts([one.severity_text for one in records]),
        arrays.texts([one.event_name for one in records]),
        pa.array([text(one.body) for one in records], pa.string()),
        arrays.attribute_maps([one.attributes for one in records]),
        arrays.whole([one.dropped_attributes_count for one in records]),
        arrays.ids([one.trace_id for one in records], arrays.TRACE_ID),
        arrays.ids([one.span_id for one in records], arrays.SPAN_ID),
        arrays.whole([one.flags for one in records]),
    ]
    return columns, None
