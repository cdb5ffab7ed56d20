"""Make the columns of spans, with their events and links."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from forebay_contrib.opentelemetry.columns import arrays
from forebay_contrib.opentelemetry.otlp_columns import EVENT, LINK
from receiver_runtime.block_store.frames.columns import arrow_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.proto.trace.v1.trace_pb2 import Span

_KINDS = ("unspecified", "internal", "server", "client", "producer", "consumer")
_STATUSES = ("unset", "ok", "error")
_EVENT, _LINK = arrow_type(EVENT), arrow_type(LINK)


def span_columns(spans: Sequence[Span]) -> tuple[list[pa.Array], None]:
    """Return the columns of spans, a row each. Raises ValueError for one that is none."""
    started = [one.start_time_unix_nano for one in spans]
    ended = [one.end_time_unix_nano for one in spans]
    start, start_nano = arrays.times(started)
    end, end_nano = arrays.times(ended)
    begin, until = arrays.numbers(started), arrays.numbers(ended)
    statuses = [one.status for one in spans]
    columns = [
        arrays.ids([one.trace_id for one in spans], arrays.TRACE_ID),
        arrays.ids([one.span_id for one in spans], arrays.SPAN_ID),
        arrays.ids([one.parent_span_id for one in spans], arrays.SPAN_ID),
        arrays.texts([one.trace_state for one in spans]),
        arrays.whole([one.flags for one in spans]),
        arrays.texts([one.name for one in spans]),
        arrays.names([one.kind for one in spans], _KINDS),
        start,
        start_nano,
        end,
        end_nano,
        pa.array(until - begin, mask=np.logical_or(begin == 0, until == 0)),
        arrays.names([one.code for one in statuses], _STATUSES),
        arrays.texts([one.message for one in statuses]),
        arrays.attribute_maps([one.attributes for one in spans]),
        arrays.whole([one.dropped_attributes_count for one in spans]),
        _events(spans),
        arrays.whole([one.dropped_events_count for one in spans]),
        _links(spans),
        arrays.whole([one.dropped_links_count for one in spans]),
    ]
    return columns, None


def _events(spans: Sequence[Span]) -> pa.ListArray:
    events = [event for one in spans for event in one.events]
    time, time_nano = arrays.times([one.time_unix_nano for one in events])
    columns = [
        time,
        time_nano,
        arrays.texts([one.name for one in events]),
        arrays.attribute_maps([one.attributes for one in events]),
        arrays.whole([one.dropped_attributes_count for one in events]),
    ]
    return arrays.lists_of([len(one.events) for one in spans], arrays.structs(_EVENT, columns))


def _links(spans: Sequence[Span]) -> pa.ListArray:
    links = [link for one in spans for link in one.links]
    columns = [
        arrays.ids([one.trace_id for one in links], arrays.TRACE_ID),
        arrays.ids([one.span_id for one in links], arrays.SPAN_ID),
        arrays.texts([one.trace_state for one in links]),
        arrays.attribute_maps([one.attributes for one in links]),
        arrays.whole([one.dropped_attributes_count for one in links]),
        arrays.whole([one.flags for one in links]),
    ]
    return arrays.lists_of([len(one.links) for one in spans], arrays.structs(_LINK, columns))
