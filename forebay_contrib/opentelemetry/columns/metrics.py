"""Make the columns of metrics: a row for each data point, of whichever type its metric is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from forebay_contrib.opentelemetry.columns import arrays
from forebay_contrib.opentelemetry.otlp_columns import BUCKETS, EXEMPLAR, METRIC_COLUMNS, QUANTILE, SHARED
from receiver_runtime.block_store.frames.columns import arrow_schema, arrow_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt
    from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

_TEMPORALITIES = ("unspecified", "delta", "cumulative")
_BUCKETS, _EXEMPLAR, _QUANTILE = arrow_type(BUCKETS), arrow_type(EXEMPLAR), arrow_type(QUANTILE)
_SCHEMA = arrow_schema(METRIC_COLUMNS[: -len(SHARED)])
_TYPES = ("gauge", "sum", "histogram", "exponential_histogram", "summary")


def metric_columns(metrics: Sequence[Metric]) -> tuple[list[pa.Array], npt.NDArray[np.int64]]:
    """Return the columns of data points, a row each, and the place of each one's metric.

    The points of one type come together, in their order. Raises ValueError for a metric that is none.
    """
    of_type: dict[str, list[int]] = {}
    for place, metric in enumerate(metrics):
        kind = metric.WhichOneof("data")
        if kind is None:
            raise ValueError("a metric has no data of a type that is known here")
        of_type.setdefault(kind, []).append(place)
    places = [np.array([], np.int64)]
    found: list[pa.RecordBatch] = []
    for name in _TYPES:
        if name in of_type:
            batch, of_metric = _points(name, [metrics[place] for place in of_type[name]])
            found.append(batch)
            places.append(np.array(of_type[name], np.int64)[of_metric])
    joined = pa.concat_batches(found) if found else _nothing()
    return joined.columns, np.concatenate(places)


def repeated_bytes(metrics: Sequence[Metric]) -> int:
    """Return how many bytes the rows take of what each metric has once, and each of its points has in its row."""
    return sum(
        _own_bytes(metric) * len(getattr(metric, kind).data_points)
        for metric in metrics
        if (kind := metric.WhichOneof("data")) is not None
    )


def _own_bytes(metric: Metric) -> int:
    texts = [len(text.encode()) for text in (metric.name, metric.description, metric.unit)]
    metadata: list[int] = [one.ByteSize() for one in metric.metadata]
    return sum(texts) + sum(metadata)


def _nothing() -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in _SCHEMA], schema=_SCHEMA)


def _points(kind: str, metrics: Sequence[Metric]) -> tuple[pa.RecordBatch, npt.NDArray[np.int64]]:
    """Return the data points of metrics of one type, and which of these each one is of."""
    data = [getattr(metric, kind) for metric in metrics]
    points = [point for one in data for point in one.data_points]
    of_metric = np.repeat(np.arange(len(metrics)), [len(one.data_points) for one in data])
    start, start_nano = arrays.times([one.start_time_unix_nano for one in points])
    time, time_nano = arrays.times([one.time_unix_nano for one in points])
    columns = {
        **_of_metrics(kind, metrics, data, pa.array(of_metric)),
        "start_time": start,
        "start_time_unix_nano": start_nano,
        "time": time,
        "time_unix_nano": time_nano,
        "attributes": arrays.attribute_maps([one.attributes for one in points]),
        "flags": arrays.whole([one.flags for one in points]),
    }
    if kind != "summary":
        columns["exemplars"] = _exemplars(points)
    if kind in {"gauge", "sum"}:
        columns["value"], columns["value_int"] = _values(points)
    else:
        columns["count"] = arrays.whole([one.count for one in points])
        columns["sum"] = _optional(points, "sum", is_optional=kind != "summary")
    if kind in {"histogram", "exponential_histogram"}:
        columns |= {name: _optional(points, name) for name in ("min", "max")}
    if kind == "histogram":
        columns["bucket_counts"] = _counts([one.bucket_counts for one in points])
        columns["explicit_bounds"] = arrays.lists_of(
            [len(one.explicit_bounds) for one in points],
            pa.array([bound for one in points for bound in one.explicit_bounds], pa.float64()),
        )
    elif kind == "exponential_histogram":
        columns |= {
            "scale": pa.array([one.scale for one in points], pa.int32()),
            "zero_count": arrays.whole([one.zero_count for one in points]),
            "zero_threshold": pa.array([one.zero_threshold for one in points], pa.float64()),
            "positive": _buckets([one.positive for one in points]),
            "negative": _buckets([one.negative for one in points]),
        }
    elif kind == "summary":
        columns["quantiles"] = _quantiles(points)
    made = [columns[field.name] if field.name in columns else pa.nulls(len(points), field.type) for field in _SCHEMA]
    return pa.RecordBatch.from_arrays(made, schema=_SCHEMA), of_metric


def _of_metrics(kind: str, metrics: Sequence[Metric], data: Sequence[Any], rows: pa.Array) -> dict[str, pa.Array]:
    once = {
        "name": arrays.texts([one.name for one in metrics]),
        "description": arrays.texts([one.description for one in metrics]),
        "unit": arrays.texts([one.unit for one in metrics]),
        "type": pa.array([kind] * len(metrics), pa.string()),
        "metadata": arrays.attribute_maps([one.metadata for one in metrics]),
    }
    if kind in {"sum", "histogram", "exponential_histogram"}:
        once["temporality"] = arrays.names([one.aggregation_temporality for one in data], _TEMPORALITIES)
    if kind == "sum":
        once["is_monotonic"] = pa.array([one.is_monotonic for one in data], pa.bool_())
    return {name: column.take(rows) for name, column in once.items()}


def _values(points: Sequence[Any]) -> tuple[pa.Array, pa.Array]:
    """Return the values of points or exemplars as doubles, and those that are whole as they are."""
    values: list[float | None] = []
    whole: list[int | None] = []
    for one in points:
        match one.WhichOneof("value"):
            case "as_int":
                values.append(float(one.as_int))
                whole.append(one.as_int)
            case "as_double":
                values.append(one.as_double)
                whole.append(None)
            case _:
                values.append(None)
                whole.append(None)
    return pa.array(values, pa.float64()), pa.array(whole, pa.int64())


def _optional(points: Sequence[Any], name: str, *, is_optional: bool = True) -> pa.Array:
    if not is_optional:
        return pa.array([getattr(one, name) for one in points], pa.float64())
    return pa.array([getattr(one, name) if one.HasField(name) else None for one in points], pa.float64())


def _counts(lists: Sequence[Sequence[int]]) -> pa.ListArray:
    return arrays.lists_of(list(map(len, lists)), arrays.whole([count for one in lists for count in one]))


def _buckets(buckets: Sequence[Any]) -> pa.StructArray:
    return arrays.structs(
        _BUCKETS,
        [pa.array([one.offset for one in buckets], pa.int32()), _counts([one.bucket_counts for one in buckets])],
    )


def _quantiles(points: Sequence[Any]) -> pa.ListArray:
    found = [quantile for one in points for quantile in one.quantile_values]
    columns = [pa.array([getattr(one, name) for one in found], pa.float64()) for name in ("quantile", "value")]
    return arrays.lists_of([len(one.quantile_values) for one in points], arrays.structs(_QUANTILE, columns))


def _exemplars(points: Sequence[Any]) -> pa.ListArray:
    found = [exemplar for one in points for exemplar in one.exemplars]
    time, time_nano = arrays.times([one.time_unix_nano for one in found])
    values, whole = _values(found)
    columns = [
        time,
        time_nano,
        values,
        whole,
        arrays.ids([one.trace_id for one in found], arrays.TRACE_ID),
        arrays.ids([one.span_id for one in found], arrays.SPAN_ID),
        arrays.attribute_maps([one.filtered_attributes for one in found]),
    ]
    return arrays.lists_of([len(one.exemplars) for one in points], arrays.structs(_EXEMPLAR, columns))
