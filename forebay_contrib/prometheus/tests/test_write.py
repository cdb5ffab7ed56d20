"""Check remote-write requests of both versions: their rows, what is rejected alone, and the answers."""

from __future__ import annotations

import json
import math
import struct
import tracemalloc
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_contrib.prometheus.write import _FIRST, _SECOND, FIRST, SECOND, parse_write
from receiver_runtime.block_store.frames.columns import arrow_schema
from receiver_runtime.receivers.http.declaration import Http
from receiver_runtime.receivers.http.messages import read_message
from receiver_runtime.receivers.http.requests.parsing_limits import UNLIMITED, ParsingLimits
from receiver_runtime.receivers.http.requests.pushed import TARGET_PATH, PushRefusedError
from receiver_runtime.receivers.http.requests.route import Answered
from receiver_runtime.record_formats.typed_rows import TypedRows
from receiver_runtime.sources.records.json_records import Json
from tests.unit.receiver_runtime.receivers.http.http_client import listening

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from receiver_runtime.receivers.http.requests.route import AnsweredRows

WRITE = "/api/v1/write"
SOURCE = Http(listen="127.0.0.1:0", max_record_bytes="10 KB")
HEADERS = {"Content-Type": f"application/x-protobuf;proto={FIRST}", "Content-Encoding": "snappy"}
STALE = struct.unpack("<d", struct.pack("<Q", 0x7FF0_0000_0000_0002))[0]
LABELS = {"__name__": "up", "job": "caf\u00e9"}


def first(*samples: tuple[float, int], labels: dict[str, str] | None = None) -> Any:  # noqa: ANN401  a message
    made = _FIRST()
    series = made.timeseries.add()
    for name, value in (labels or LABELS).items():
        series.labels.add(name=name.encode(), value=value.encode())
    for number, timestamp in samples:
        series.samples.add(value=number, timestamp=timestamp)
    return made


def second(*samples: tuple[float, int]) -> Any:  # noqa: ANN401  a message
    made = _SECOND(symbols=[b"", *(text.encode() for pair in LABELS.items() for text in pair), b"seconds"])
    series = made.timeseries.add(labels_refs=[1, 2, 3, 4])
    for value, timestamp in samples:
        series.samples.add(value=value, timestamp=timestamp)
    return made


def snapped(message: Any) -> bytes:  # noqa: ANN401  a message
    data: bytes = pa.compress(message.SerializeToString(), codec="snappy", asbytes=True)
    return data


def parsed(
    message: Any,  # noqa: ANN401  a message
    source: Http = SOURCE,
    limits: ParsingLimits = UNLIMITED,
) -> AnsweredRows:
    kind = f"application/x-protobuf; proto={SECOND if isinstance(message, _SECOND) else FIRST}".encode()
    return parse_write([(b"content-type", kind), (TARGET_PATH, WRITE.encode())], snapped(message), source, limits)


def bodies(found: AnsweredRows) -> list[dict[str, Any]]:
    return [json.loads(row["body"]) for row in found.batch.to_pylist()]


def written(found: AnsweredRows, misfits: Sequence[int] = ()) -> tuple[int, list[str]]:
    reply = found.answer(Answered(1, 0, misfits=dict.fromkeys(misfits, "why")))
    return reply.status, [value for name, value in reply.headers if name.endswith("-written")]


@pytest.mark.parametrize("version", [first, second])
def test_each_sample_is_a_row_with_the_labels_of_its_series(version: Any) -> None:  # noqa: ANN401
    found = parsed(version((1.5, 1000), (1e300, 2000), (math.nan, 3), (STALE, 4), (math.inf, 5), (-math.inf, -6)))
    head = {"name": "up", "labels": {"job": "caf\u00e9"}}
    assert bodies(found) == [
        {**head, "timestamp_ms": 1000, "value": 1.5},
        {**head, "timestamp_ms": 2000, "value": 1e300},
        {**head, "timestamp_ms": 3, "value": None, "special": "NaN"},
        {**head, "timestamp_ms": 4, "value": None, "special": "stale"},
        {**head, "timestamp_ms": 5, "value": None, "special": "+Inf"},
        {**head, "timestamp_ms": -6, "value": None, "special": "-Inf"},
    ]
    assert found.batch.column("attributes").null_count == 6
    assert written(found) == (204, ["6", "0", "0"])
    assert written(found, [0, 3]) == (204, ["4", "0", "0"])
    assert written(found, range(6)) == (400, ["0", "0", "0"])


def test_histograms_exemplars_and_what_the_second_version_adds() -> None:
    made = second()
    series = made.timeseries[0]
    series.created_timestamp = 7
    series.metadata.type, series.metadata.unit_ref = 3, 5
    histogram = series.histograms.add(count_int=3, sum=math.nan, schema=-53, zero_count_float=0.5, timestamp=9)
    histogram.positive_spans.add(offset=-1, length=2)
    histogram.positive_deltas.extend([1, -1])
    histogram.custom_values.extend([0.5, math.inf])
    series.exemplars.add(labels_refs=[3, 4], value=2.0, timestamp=8)
    found = parsed(made)
    of_histogram, of_exemplar = bodies(found)
    head = {"name": "up", "labels": {"job": "caf\u00e9"}, "type": "histogram", "unit": "seconds"}
    assert of_exemplar == {**head, "timestamp_ms": 8, "value": 2.0, "exemplar": {"job": "caf\u00e9"}}
    assert {name: value for name, value in of_histogram.items() if name != "histogram"} == {
        **head,
        "timestamp_ms": 9,
        "start_ms": 7,
    }
    assert of_histogram["histogram"] == {
        "count": 3,
        "sum": "NaN",
        "schema": -53,
        "zero_threshold": 0.0,
        "zero_count": 0.5,
        "reset_hint": None,
        "negative_spans": [],
        "negative_deltas": [],
        "negative_counts": [],
        "positive_spans": [[-1, 2]],
        "positive_deltas": [1, -1],
        "positive_counts": [],
        "custom_values": [0.5, "+Inf"],
    }
    assert written(found) == (204, ["0", "1", "1"])


def test_a_series_that_can_not_be_read_is_rejected_alone() -> None:
    made = first((1.0, 1))
    for name, value in ((b"\xff", b"x"), (b"job", b"\xff"), (b"job", b"x" * 20_000)):
        bad = made.timeseries.add()
        bad.CopyFrom(made.timeseries[0])
        bad.labels[1].name, bad.labels[1].value = name, value
    twice = made.timeseries.add()
    twice.CopyFrom(made.timeseries[0])
    twice.labels.add(name=b"job", value=b"y")
    found = parsed(made)
    assert len(bodies(found)) == 1
    assert [one.reason.label for one in found.rejected] == [*["unparsable"] * 2, "record_too_large", "unparsable"]
    assert found.rejected[0].data == made.timeseries[1].SerializeToString()
    wrong = second((1.0, 1))
    wrong.timeseries.add(labels_refs=[1]).samples.add(value=1.0)
    wrong.timeseries.add(labels_refs=[1, 99]).samples.add(value=1.0)
    wrong.timeseries.add(labels_refs=[1, 2], metadata={"unit_ref": 99}).samples.add(value=1.0)
    assert (len(bodies(parsed(wrong))), len(parsed(wrong).rejected)) == (1, 3)


def _long_label() -> Any:  # noqa: ANN401  a message
    made = first(labels={"long": "x" * 65_536})
    for _ in range(1000):
        made.timeseries[0].samples.add()
    return made


def _symbol_often() -> Any:  # noqa: ANN401  a message
    made = _SECOND(symbols=[b"x" * 65_536, *(b"%d" % number for number in range(1000))])
    made.timeseries.add(labels_refs=[place for number in range(1, 1001) for place in (number, 0)]).samples.add()
    return made


def _symbol_in_exemplars() -> Any:  # noqa: ANN401  a message
    made = _SECOND(symbols=[b"x" * 65_536, b"n"])
    series = made.timeseries.add(labels_refs=[1, 1])
    for _ in range(1000):
        series.exemplars.add(labels_refs=[1, 0])
    return made


@pytest.mark.parametrize("make", [_long_label, _symbol_often, _symbol_in_exemplars])
def test_labels_that_rows_repeat_are_refused_before_there_are_many(make: Any) -> None:  # noqa: ANN401
    """Each sample has the labels of its series: a few kilobytes, as sent, would be gigabytes."""
    small = Http(listen="127.0.0.1:0", max_body_bytes="1 MiB", max_waiting_bytes="1 MiB")
    tracemalloc.start()
    try:
        with pytest.raises(PushRefusedError) as refused:
            parsed(make(), small)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert refused.value.status == 413
    assert peak < 8 * 2**20


def test_a_series_with_more_labels_than_a_record_has_is_a_dead_letter_as_it_was_sent() -> None:
    made = second((1.0, 1))
    made.symbols.append(b"x" * 6000)
    made.timeseries.add(labels_refs=[1, 6, 2, 6]).samples.add()
    made.timeseries.add(labels_refs=[1, 2]).histograms.add(positive_deltas=[0] * 6000)
    found = parsed(made)
    assert len(bodies(found)) == 1
    assert [(one.reason.label, one.data) for one in found.rejected] == [
        ("record_too_large", series.SerializeToString()) for series in made.timeseries[1:]
    ]


def test_the_parts_of_a_message_are_counted_together() -> None:
    made = first((1.0, 1))
    histogram = made.timeseries[0].histograms.add()
    # Neither the spans alone nor the samples alone are too many.
    for _ in range(50):
        histogram.positive_spans.add()
        made.timeseries[0].samples.add()
    assert read_message(_FIRST, made.SerializeToString(), ParsingLimits(most_values=150)) == made
    with pytest.raises(PushRefusedError, match="messages in protobuf, max_body_values is 99"):
        read_message(_FIRST, made.SerializeToString(), ParsingLimits(most_values=99))


def test_messages_with_longer_tags_are_counted() -> None:
    for tag in (b"\x8a\x00", b"\x8a\x80\x00"):
        assert len(read_message(_FIRST, (tag + b"\x00") * 99, ParsingLimits(most_values=99)).timeseries) == 99
        with pytest.raises(PushRefusedError, match="100 messages in protobuf, max_body_values is 99"):
            read_message(_FIRST, (tag + b"\x00") * 100, ParsingLimits(most_values=99))


def test_the_time_is_checked_within_a_long_series() -> None:
    looks = 0

    def clock() -> float:
        nonlocal looks
        looks += 1
        return 0.0

    parsed(first(*[(1.0, 1)] * 10_000), limits=ParsingLimits(clock=clock))
    assert looks > 10


@settings(max_examples=60)
@given(st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=5), st.floats(), st.integers(0, 2**62))
def test_labels_and_values_come_back(labels: dict[str, str], value: float, timestamp: int) -> None:
    [body] = bodies(parsed(first((value, timestamp), labels={"__name__": "m", **labels})))
    assert body["labels"] == {name: text for name, text in labels.items() if name != "__name__"}
    assert body["timestamp_ms"] == timestamp
    assert (body["value"] == value) if math.isfinite(value) else (body["value"] is None)


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"x", FIRST, 400),
        (snapped(first()) + b"x", FIRST, 400),
        (pa.compress(b"\xff", codec="snappy", asbytes=True), FIRST, 400),
        (b"\xff\xff\xff\xff\x7fx", FIRST, 413),
        (snapped(first((1.0, 1), labels={"a": "x" * 20_000})), FIRST, 413),
        (snapped(first()), "other.Message", 415),
    ],
)
def test_a_request_without_a_series_is_refused(body: bytes, kind: str, status: int) -> None:
    headers = [(b"content-type", f"application/x-protobuf;proto={kind}".encode())]
    with pytest.raises(PushRefusedError) as refused:
        parse_write(headers, body, SOURCE, UNLIMITED)
    assert refused.value.status == status


def test_a_repeated_request_is_stored_once_and_what_passes_is_no_4xx(tmp_path: Path) -> None:
    with listening(tmp_path, protocols="prometheus", acknowledgement_timeout="300ms") as made:
        for _ in range(2):
            answer = made.post(snapped(first((1.0, 1), (2.0, 2))), HEADERS, path=WRITE)
            assert (answer.status, answer.headers["x-prometheus-remote-write-samples-written"]) == (204, "2")
        kind = {**HEADERS, "Content-Type": f"application/x-protobuf;proto={SECOND}"}
        assert made.post(snapped(second((3.0, 3))), kind, path="/api/v1/push").status == 204
        assert [json.loads(row["body"])["value"] for row in made.rows()] == [1.0, 2.0, 3.0]
        assert {row["content_type"] for row in made.rows()} == {"application/json"}
        unread = made.post(b"x", {"Content-Type": "text/plain"}, path=WRITE)
        assert (unread.status, unread.headers["content-type"]) == (415, "text/plain; charset=utf-8")
        made.log.away = True
        away = made.post(snapped(first((9.0, 9))), HEADERS, path=WRITE)
        assert (away.status, away.headers["retry-after"]) == (503, "5")
        made.log.away = False


def test_samples_become_columns_of_a_typed_stream(tmp_path: Path) -> None:
    ddl = "name STRING, labels STRUCT<job: STRING>, timestamp_ms BIGINT, value DOUBLE, special STRING"
    check = TypedRows(Json(ddl), arrow_schema(Http.columns), Http.record_column)
    with listening(tmp_path, protocols="prometheus", row_check=check) as made:
        assert made.post(snapped(first((1.0, 1), (STALE, 2))), HEADERS, path=WRITE).status == 204
        assert [(row["name"], row["labels"], row["value"], row["special"]) for row in made.rows()] == [
            ("up", {"job": "caf\u00e9"}, 1.0, None),
            ("up", {"job": "caf\u00e9"}, None, "stale"),
        ]
