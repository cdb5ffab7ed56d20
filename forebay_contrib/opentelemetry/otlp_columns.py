"""List the columns of each signal's stream. A declaration reads them, so this loads nothing."""

from __future__ import annotations

Columns = tuple[tuple[str, str], ...]

_TIME = "timestamp[us, tz=UTC]"
_MAP = "map<string, string>"

#: The inner values of columns, as Arrow has their types in text.
EVENT = (
    f"struct<time: {_TIME}, time_unix_nano: int64, name: string, attributes: {_MAP}, dropped_attributes_count: int64>"
)
LINK = (
    f"struct<trace_id: string, span_id: string, trace_state: string, attributes: {_MAP}, "
    "dropped_attributes_count: int64, flags: int64>"
)
EXEMPLAR = (
    f"struct<time: {_TIME}, time_unix_nano: int64, value: double, value_int: int64, trace_id: string, span_id: string, "
    f"attributes: {_MAP}>"
)
QUANTILE = "struct<quantile: double, value: double>"
BUCKETS = "struct<offset: int32, bucket_counts: list<item: int64>>"

#: Of every row: the resource and the scope of its record, and when it came.
SHARED: Columns = (
    ("service_name", "string"),
    ("resource_attributes", _MAP),
    ("resource_schema_url", "string"),
    ("scope_name", "string"),
    ("scope_version", "string"),
    ("scope_attributes", _MAP),
    ("scope_schema_url", "string"),
    ("received_at", _TIME),
)

LOG_COLUMNS: Columns = (
    ("time", _TIME),
    ("time_unix_nano", "int64"),
    ("observed_time", _TIME),
    ("observed_time_unix_nano", "int64"),
    ("severity_number", "int32"),
    ("severity_text", "string"),
    ("event_name", "string"),
    ("body", "string"),
    ("attributes", _MAP),
    ("dropped_attributes_count", "int64"),
    ("trace_id", "string"),
    ("span_id", "string"),
    ("flags", "int64"),
    *SHARED,
)

SPAN_COLUMNS: Columns = (
    ("trace_id", "string"),
    ("span_id", "string"),
    ("parent_span_id", "string"),
    ("trace_state", "string"),
    ("flags", "int64"),
    ("name", "string"),
    ("kind", "string"),
    ("start_time", _TIME),
    ("start_time_unix_nano", "int64"),
    ("end_time", _TIME),
    ("end_time_unix_nano", "int64"),
    ("duration_nano", "int64"),
    ("status_code", "string"),
    ("status_message", "string"),
    ("attributes", _MAP),
    ("dropped_attributes_count", "int64"),
    ("events", f"list<item: {EVENT}>"),
    ("dropped_events_count", "int64"),
    ("links", f"list<item: {LINK}>"),
    ("dropped_links_count", "int64"),
    *SHARED,
)

METRIC_COLUMNS: Columns = (
    ("name", "string"),
    ("description", "string"),
    ("unit", "string"),
    ("type", "string"),
    ("temporality", "string"),
    ("is_monotonic", "bool"),
    ("metadata", _MAP),
    ("start_time", _TIME),
    ("start_time_unix_nano", "int64"),
    ("time", _TIME),
    ("time_unix_nano", "int64"),
    ("attributes", _MAP),
    ("flags", "int64"),
    ("value", "double"),
    ("value_int", "int64"),
    ("count", "int64"),
    ("sum", "double"),
    ("min", "double"),
    ("max", "double"),
    ("bucket_counts", "list<item: int64>"),
    ("explicit_bounds", "list<item: double>"),
    ("scale", "int32"),
    ("zero_count", "int64"),
    ("zero_threshold", "double"),
    ("positive", BUCKETS),
    ("negative", BUCKETS),
    ("quantiles", f"list<item: {QUANTILE}>"),
    ("exemplars", f"list<item: {EXEMPLAR}>"),
    *SHARED,
)
