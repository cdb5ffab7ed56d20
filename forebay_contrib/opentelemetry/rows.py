"""Make the rows of an export request of OTLP, with the columns of its signal. Loads ``opentelemetry-proto``.

A record that is none refuses no other: the request is then taken apart, and the record rejected as it was sent.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError

from forebay_contrib.opentelemetry.answers import JSON, PROTOBUF
from forebay_contrib.opentelemetry.columns.arrays import attribute_maps, texts
from forebay_contrib.opentelemetry.columns.logs import log_columns
from forebay_contrib.opentelemetry.columns.metrics import metric_columns, repeated_bytes
from forebay_contrib.opentelemetry.columns.spans import span_columns
from forebay_contrib.opentelemetry.json_form import WRONG, Json
from forebay_contrib.opentelemetry.otlp_columns import LOG_COLUMNS, METRIC_COLUMNS, SPAN_COLUMNS
from forebay_contrib.opentelemetry.parting import parted
from forebay_contrib.opentelemetry.protobuf import Protobuf
from forebay_contrib.opentelemetry.signals import LOGS, METRICS, TRACES, Level
from receiver_runtime.block_store.frames.columns import arrow_schema
from receiver_runtime.receivers.http.requests.parsing_limits import UNLIMITED, ParsingLimits
from receiver_runtime.receivers.http.requests.pushed import PushedRows, PushRefusedError, header, media_type
from receiver_runtime.receivers.http.requests.text_bodies import json_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from forebay_contrib.opentelemetry.parting import Form
    from forebay_contrib.opentelemetry.signals import Signal
    from receiver_runtime.receivers.http.requests.pushed import Headers, RejectedRecord

    _Columns = Callable[[Sequence[Any]], tuple[list[pa.Array], npt.NDArray[np.int64] | None]]

_WRONG = (*WRONG, DecodeError, OverflowError, RecursionError)
_MILLISECOND = 1_000_000
_TIMES = ("time_unix_nano", "observed_time_unix_nano", "start_time_unix_nano", "end_time_unix_nano")
_MADE: dict[str, tuple[_Columns, pa.Schema]] = {
    LOGS.name: (log_columns, arrow_schema(LOG_COLUMNS)),
    TRACES.name: (span_columns, arrow_schema(SPAN_COLUMNS)),
    METRICS.name: (metric_columns, arrow_schema(METRIC_COLUMNS)),
}


def parse_rows(
    signal: Signal,
    headers: Headers,
    body: bytes,
    *,
    most_bytes: int,
    most_bytes_in_all: int,
    limits: ParsingLimits = UNLIMITED,
) -> PushedRows:
    """Return the rows of an export request. A record that is too large, or that can't be a row, is rejected alone.

    A request that is sent again has the same bytes. So the hash of these is the rows' key, if at least one of their
    times is finer than a millisecond: then no two different requests have the same bytes by chance.

    Args:
        signal: the signal that is taken.
        headers: the request's headers.
        body: the request's body, decompressed.
        most_bytes: the limit of one record, as it was sent.
        most_bytes_in_all: the limit of all rows together. Each has its resource and scope, which the request has once.
        limits: how many values the body may have, and until when it may be parsed.

    Raises:
        ParsingStoppedError: the time is over, or the sender has left.
        PushRefusedError: 400 for an invalid request, 413 for too much in all, 415 for a media type that is none of
            OTLP's two.
    """
    kind, charset = media_type(header(headers, b"content-type"))
    has_key = header(headers, b"idempotency-key") is not None
    if kind == PROTOBUF:
        limits.check_protobuf(body)
        return _parsed(Protobuf(signal), body, kind, most_bytes, most_bytes_in_all, limits, has_key=has_key)
    if kind != JSON:
        raise PushRefusedError(415, f"the media type {kind!r} is not read here: send {PROTOBUF} or {JSON}")
    text = json_text(kind, charset, body)
    limits.check_json(text.body)
    found = _parsed(Json(signal), text.body, kind, most_bytes, most_bytes_in_all, limits, has_key=has_key)
    return replace(found, rejected=text.as_sent(found.rejected)) if found.rejected else found


def _parsed(
    form: Form,
    body: bytes,
    kind: str,
    most_bytes: int,
    most_bytes_in_all: int,
    limits: ParsingLimits,
    *,
    has_key: bool,
) -> PushedRows:
    signal = form.signal
    try:
        request = form.whole(body)
        if len(body) > most_bytes:
            raise ValueError(f"one of its {signal.noun}s may be longer than max_record_bytes")
        return _rows(signal, body, request, [], most_bytes_in_all, has_key=has_key)
    except _WRONG as error:
        if isinstance(error, PushRefusedError):
            raise
        try:
            request, rejected = parted(
                body,
                form,
                limits,
                most_bytes=most_bytes,
                wrong=_WRONG,
                check=lambda part: _check(signal, part, most_bytes_in_all),
            )
        except _WRONG:
            request, rejected = None, []
        # Where no record is the fault, it is somewhere that is not known here.
        if request is None or not (rejected or len(body) > most_bytes):
            why = "the JSON is nested too deeply" if isinstance(error, RecursionError) else error
            raise PushRefusedError(400, _no_request(signal, body, kind, why)) from error
        limits.check()
        return _rows(signal, body, request, rejected, most_bytes_in_all, has_key=has_key)


def _no_request(signal: Signal, body: bytes, kind: str, why: object) -> str:
    name = signal.kinds[Level.REQUEST].DESCRIPTOR.name
    return f"{len(body)} bytes are no {name} of the type {kind} ({why}): correct it"


def _check(signal: Signal, part: Any, most_bytes_in_all: int) -> None:  # noqa: ANN401  one of three kinds of message
    """Raise ValueError for a part that can't be a row, or the part of one, as it is."""
    if isinstance(part, signal.kinds[Level.RECORD]):
        # One with too large rows is not tried: the whole request is refused for it.
        if _repeated(signal, [part]) <= most_bytes_in_all:
            _MADE[signal.name][0]([part])
    elif isinstance(part, signal.kinds[Level.SCOPE]):
        attribute_maps([part.scope.attributes])
    elif isinstance(part, signal.kinds[Level.RESOURCE]):
        attribute_maps([part.resource.attributes])


def _rows(
    signal: Signal,
    body: bytes,
    request: Any,  # noqa: ANN401  one of three kinds of message
    rejected: list[RejectedRecord],
    most_bytes_in_all: int,
    *,
    has_key: bool,
) -> PushedRows:
    resources = list(getattr(request, signal.fields[Level.REQUEST]))
    scopes = [scope for one in resources for scope in getattr(one, signal.fields[Level.RESOURCE])]
    records = [record for one in scopes for record in getattr(one, signal.fields[Level.SCOPE])]
    columns, schema = _MADE[signal.name]
    spread = _repeated(signal, records)
    # Before the columns are made: they hold these bytes.
    _check_spread(spread, body, most_bytes_in_all)
    own, of_record = columns(records)
    resource_of_scope = np.repeat(
        np.arange(len(resources)), [len(getattr(one, signal.fields[Level.RESOURCE])) for one in resources]
    )
    scope_of = np.repeat(np.arange(len(scopes)), [len(getattr(one, signal.fields[Level.SCOPE])) for one in scopes])
    if of_record is not None:
        scope_of = scope_of[of_record]
    resource_of = resource_of_scope[scope_of]
    rows = len(scope_of)
    spread += _spread([one.resource.ByteSize() + len(one.schema_url.encode()) for one in resources], resource_of)
    spread += _spread([one.scope.ByteSize() + len(one.schema_url.encode()) for one in scopes], scope_of)
    _check_spread(spread, body, most_bytes_in_all)
    received = pa.array(np.full(rows, time.time_ns() // 1000), pa.int64()).cast(schema.field("received_at").type)
    shared = [column.take(pa.array(resource_of)) for column in _resource_columns(resources)]
    shared += [column.take(pa.array(scope_of)) for column in _scope_columns(scopes)]
    batch = pa.RecordBatch.from_arrays([*own, *shared, received], schema=schema)
    key = None if has_key or not _any_fine(batch) else f"otlp {hashlib.sha256(body).hexdigest()}"
    return PushedRows(batch, key, rejected)


def _repeated(signal: Signal, records: Sequence[Any]) -> int:
    return repeated_bytes(records) if signal is METRICS else 0


def _check_spread(spread: int, body: bytes, most_bytes_in_all: int) -> None:
    if spread + len(body) > most_bytes_in_all:
        raise PushRefusedError(
            413,
            f"body: its rows, each with its resource, scope and metric, take at least {spread} bytes more than the "
            f"body, which is more than max_waiting_bytes, {most_bytes_in_all}: export fewer at once",
        )


def _spread(sizes: Sequence[int], of_row: npt.NDArray[np.int64]) -> int:
    """Return how many bytes parts of these sizes take that are repeated in each of their rows."""
    counts = np.bincount(of_row, minlength=len(sizes))
    return int(counts @ np.array(sizes, np.int64))


def _resource_columns(resources: Sequence[Any]) -> list[pa.Array]:
    attributes = attribute_maps([one.resource.attributes for one in resources])
    names = [next((value for key, value in one if key == "service.name"), None) for one in attributes.to_pylist()]
    return [pa.array(names, pa.string()), attributes, texts([one.schema_url for one in resources])]


def _scope_columns(scopes: Sequence[Any]) -> list[pa.Array]:
    return [
        texts([one.scope.name for one in scopes]),
        texts([one.scope.version for one in scopes]),
        attribute_maps([one.scope.attributes for one in scopes]),
        texts([one.schema_url for one in scopes]),
    ]


def _any_fine(batch: pa.RecordBatch) -> bool:
    """Return whether any time is finer than a millisecond."""
    for name in _TIMES:
        if name in batch.schema.names:
            found = batch.column(name).fill_null(0).to_numpy(zero_copy_only=False)
            if (found % _MILLISECOND).any():
                return True
    return False
