"""Makes rows of Prometheus' remote-write requests, of both versions: each sample, histogram and exemplar is a row.

The labels of a series are written once for all its rows. A series that can't be read refuses no other: it becomes a
dead letter, as it was sent.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec

from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.receivers.http.messages import message_types, read_message
from receiver_runtime.receivers.http.requests.decompression import unsnapped
from receiver_runtime.receivers.http.requests.pushed import MOST_REJECTED, PushRefusedError, RejectedRecord, header
from receiver_runtime.receivers.http.requests.route import AnsweredRows, Reply
from receiver_runtime.receivers.http.rows import Rows, key_of_body

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from receiver_runtime.receivers.http.declaration import Http
    from receiver_runtime.receivers.http.requests.parsing_limits import ParsingLimits
    from receiver_runtime.receivers.http.requests.pushed import Headers
    from receiver_runtime.receivers.http.requests.route import Answered

PROTOBUF = "application/x-protobuf"
FIRST = "prometheus.WriteRequest"
SECOND = "io.prometheus.write.v2.Request"
_JSON = "application/json"
_TEXT = "text/plain; charset=utf-8"
_NAME = "__name__"
_STALE = struct.pack("<Q", 0x7FF0_0000_0000_0002)  # the NaN that says that a series has ended
_ENCODER = msgspec.json.Encoder()
_CHECK_EVERY = 256  # how many rows of a series to make before the time is checked again
_LABEL_BYTES = 6  # of a label in JSON, beside its name and value
_ELEMENT_BYTES = 2  # of an element of a histogram in JSON, at least
_COUNTED = ("samples", "histograms", "exemplars")
#: Metrics' types, by their numbers in the second version.
_METRIC_TYPES = (None, "counter", "gauge", "histogram", "gaugehistogram", "summary", "info", "stateset")
_RESET_HINTS = (None, "yes", "no", "gauge")
_HISTOGRAM = {
    "count_int": (1, "uint64"),
    "count_float": (2, "double"),
    "sum": (3, "double"),
    "schema": (4, "sint32"),
    "zero_threshold": (5, "double"),
    "zero_count_int": (6, "uint64"),
    "zero_count_float": (7, "double"),
    "negative_spans": (8, "repeated Span"),
    "negative_deltas": (9, "repeated sint64"),
    "negative_counts": (10, "repeated double"),
    "positive_spans": (11, "repeated Span"),
    "positive_deltas": (12, "repeated sint64"),
    "positive_counts": (13, "repeated double"),
    "reset_hint": (14, "int32"),
    "timestamp": (15, "int64"),
    "custom_values": (16, "repeated double"),
    "start_timestamp": (17, "int64"),
}
_SHARED = {
    "Sample": {"value": (1, "double"), "timestamp": (2, "int64"), "start_timestamp": (3, "int64")},
    "Span": {"offset": (1, "sint32"), "length": (2, "uint32")},
    "Histogram": _HISTOGRAM,
}
_FIRST = message_types(
    "forebay.prometheus1",
    {
        "WriteRequest": {"timeseries": (1, "repeated Series")},
        "Series": {
            "labels": (1, "repeated Label"),
            "samples": (2, "repeated Sample"),
            "exemplars": (3, "repeated Exemplar"),
            "histograms": (4, "repeated Histogram"),
        },
        "Label": {"name": (1, "bytes"), "value": (2, "bytes")},
        "Exemplar": {"labels": (1, "repeated Label"), "value": (2, "double"), "timestamp": (3, "int64")},
        **_SHARED,
    },
)["WriteRequest"]
_SECOND = message_types(
    "forebay.prometheus2",
    {
        "Request": {"symbols": (4, "repeated bytes"), "timeseries": (5, "repeated Series")},
        "Series": {
            "labels_refs": (1, "repeated uint32"),
            "samples": (2, "repeated Sample"),
            "histograms": (3, "repeated Histogram"),
            "exemplars": (4, "repeated Exemplar"),
            "metadata": (5, "Metadata"),
            "created_timestamp": (6, "int64"),
        },
        "Exemplar": {"labels_refs": (1, "repeated uint32"), "value": (2, "double"), "timestamp": (3, "int64")},
        "Metadata": {"type": (1, "int32"), "help_ref": (3, "uint32"), "unit_ref": (4, "uint32")},
        **_SHARED,
    },
)["Request"]


class _TooLargeError(ValueError):
    """Signal that a row of a series would be larger than a record may be."""


@dataclass(slots=True)
class _Symbols:
    """Hold the texts of a request of the second version, to which its series refer."""

    texts: Sequence[bytes]

    def pairs(self, references: Sequence[int]) -> Iterator[tuple[bytes, bytes]]:
        """Yield names and values. Raises ValueError."""
        if len(references) % 2:
            raise ValueError(f"{len(references)} references are no pairs of names and values")
        each = iter(references)
        for name, value in zip(each, each, strict=True):
            yield self.text(name), self.text(value)

    def text(self, reference: int) -> bytes:
        """Return a text. Raises ValueError."""
        if reference >= len(self.texts):
            raise ValueError(f"there is no symbol {reference} among {len(self.texts)}")
        return self.texts[reference]


def parse_write(headers: Headers, body: bytes, source: Http, limits: ParsingLimits) -> AnsweredRows:
    """Return a row for each sample, histogram and exemplar.

    A request that is sent again has the same bytes, and equal samples of a series at one time are one: so the hash of
    the body is the rows' key.

    Raises:
        ParsingStoppedError: the time is over, or the sender has left.
        PushRefusedError: 400, no series can be read; 413, there are too many, or they are too large together; 415 for a
            media type or a message that is none of remote-write's.
    """
    message = _message_of(headers)
    # What has a Content-Encoding is decompressed already. Both versions say that it is snappy.
    if header(headers, b"content-encoding") is None:
        body = unsnapped(body, most_bytes=source.max_body_bytes, limits=limits)
    made = _Rows(Rows(headers, source), source)
    if message == SECOND:
        request = read_message(_SECOND, body, limits)
        made.add_all(request.timeseries, _Symbols(list(request.symbols)), limits)
    else:
        made.add_all(read_message(_FIRST, body, limits).timeseries, None, limits)
    return made.pushed(key_of_body("prometheus", headers, body, source))


def _message_of(headers: Headers) -> str:
    kind, *parameters = (header(headers, b"content-type") or PROTOBUF).split(";")
    named = [value.strip() for name, _, value in (one.partition("=") for one in parameters) if name.strip() == "proto"]
    message = named[0].strip('"') if named else FIRST
    if kind.strip().lower() != PROTOBUF or message not in {FIRST, SECOND}:
        raise PushRefusedError(
            415,
            f"Content-Type: {kind.strip()!r:.60}, of {message!r:.60}, is not read here: send {PROTOBUF} of {FIRST} or "
            f"{SECOND}",
        )
    return message


class _Rows:
    """Gather the rows of series, and what is none."""

    def __init__(self, rows: Rows, source: Http) -> None:
        self._rows = rows
        self._most_bytes = min(source.max_record_bytes, source.max_waiting_bytes)
        self._most_held = source.max_waiting_bytes
        # The bytes of all bodies, those of dead letters among them.
        self._held = 0
        self._none = rows.add_shared({})
        self._rejected: list[RejectedRecord] = []
        #: The kind of each row.
        self._kinds: list[str] = []

    def add_all(self, series: Iterable[Any], symbols: _Symbols | None, limits: ParsingLimits) -> None:
        """Add the rows of each series. Raises PushRefusedError: 413, they are too large together."""
        for number, one in enumerate(series):
            limits.check()
            try:
                made = self._made(one, symbols, limits)
            except PushRefusedError:
                raise
            except _TooLargeError as error:
                self._reject(one.SerializeToString(), DeadLetterReason.RECORD_TOO_LARGE, f"series {number}: {error}")
                continue
            except ValueError as error:
                self._reject(one.SerializeToString(), DeadLetterReason.UNPARSABLE, f"series {number}: {error}")
                continue
            for kind, body in made:
                if len(body) > self._most_bytes:
                    why = f"series {number}: {len(body)} bytes in JSON, max_record_bytes is {self._most_bytes}"
                    self._reject(body, DeadLetterReason.RECORD_TOO_LARGE, why)
                else:
                    self._rows.add(body, self._none)
                    self._kinds.append(kind)

    def _made(
        self,
        series: Any,  # noqa: ANN401  a message
        symbols: _Symbols | None,
        limits: ParsingLimits,
    ) -> Sequence[tuple[str, bytes]]:
        """Return the rows of a series, each with its kind. Each of them has all its labels, so they are counted."""
        made: list[tuple[str, bytes]] = []
        for row in _bodies(series, symbols, self._most_bytes):
            if not len(made) % _CHECK_EVERY:
                limits.check()
            self._held += len(row[1])
            if self._held > self._most_held:
                raise PushRefusedError(
                    413,
                    f"body: more than {self._most_held} bytes of rows, each with its labels, which is "
                    "max_waiting_bytes: send fewer at once",
                )
            made.append(row)
        return made

    def _reject(self, data: bytes, reason: DeadLetterReason, why: str) -> None:
        self._rejected.append(RejectedRecord(data, reason, why))
        if len(self._rejected) > MOST_REJECTED:
            raise PushRefusedError(400, f"body: more than {MOST_REJECTED} series are none; {self._rejected[0].why}")

    def pushed(self, key: str | None) -> AnsweredRows:
        """Return the rows. Raises PushRefusedError: none of the series can be read."""
        if self._rejected and not self._kinds:
            is_large = all(one.reason is DeadLetterReason.RECORD_TOO_LARGE for one in self._rejected)
            raise PushRefusedError(413 if is_large else 400, f"body: no series is one; {self._rejected[0].why}")
        return AnsweredRows(self._rows.batch(_JSON), key, self._rejected, answer=partial(_answer, self._kinds))


def _answer(kinds: Sequence[str], answered: Answered) -> Reply:
    """Answer with how much was written, as the second version asks; where nothing fits, so that it is not repeated."""
    written = [kind for place, kind in enumerate(kinds) if place not in answered.misfits]
    counts = [(f"x-prometheus-remote-write-{kind}-written", str(written.count(kind))) for kind in _COUNTED]
    if answered.misfits and not written:
        why = f"none of {len(kinds)} records fits the stream's columns; {answered.why}: correct it\n"
        return Reply(HTTPStatus.BAD_REQUEST, _TEXT, why.encode(), counts)
    return Reply(HTTPStatus.ACCEPTED if answered.buffered else HTTPStatus.NO_CONTENT, _TEXT, b"", counts)


def _bodies(
    series: Any,  # noqa: ANN401  a message
    symbols: _Symbols | None,
    most_bytes: int,
) -> Iterator[tuple[str, bytes]]:
    """Yield the rows of a series, each with its kind. Raises ValueError."""
    labels = _labels(series, symbols, most_bytes)
    name = labels.pop(_NAME, None)
    head = f'{{"name":{_dumps(name)},"labels":{_dumps(labels)}'
    started = 0
    if symbols is not None:
        head += _metadata(series.metadata, symbols)
        started = series.created_timestamp
    for sample in series.samples:
        start = _start(sample.start_timestamp or started)
        yield "samples", f'{head},"timestamp_ms":{sample.timestamp}{start},{_value(sample.value)}}}'.encode()
    for histogram in series.histograms:
        start = _start(histogram.start_timestamp or started)
        body = f'{head},"timestamp_ms":{histogram.timestamp}{start},"histogram":{_histogram(histogram, most_bytes)}}}'
        yield "histograms", body.encode()
    for exemplar in series.exemplars:
        its = _dumps(_labels(exemplar, symbols, most_bytes))
        body = f'{head},"timestamp_ms":{exemplar.timestamp},{_value(exemplar.value)},"exemplar":{its}}}'
        yield "exemplars", body.encode()


def _labels(one: Any, symbols: _Symbols | None, most_bytes: int) -> dict[str, str]:  # noqa: ANN401  a message
    """Return the labels of a series or an exemplar, which may refer to one long text many times. Raises ValueError."""
    pairs = ((label.name, label.value) for label in one.labels) if symbols is None else symbols.pairs(one.labels_refs)
    labels: dict[str, str] = {}
    size = 0
    for name, value in pairs:
        size += len(name) + len(value) + _LABEL_BYTES
        if size > most_bytes:
            raise _TooLargeError(f"more than {most_bytes} bytes of labels, which is the most that a record has")
        try:
            named, text = name.decode(), value.decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"a label is no UTF-8 at byte {error.start}") from error
        if named in labels:
            raise ValueError("a label is there twice")
        labels[named] = text
    return labels


def _metadata(metadata: Any, symbols: _Symbols) -> str:  # noqa: ANN401  a message
    unit = symbols.text(metadata.unit_ref).decode(errors="replace") if metadata.unit_ref else ""
    number = metadata.type if 0 <= metadata.type < len(_METRIC_TYPES) else 0
    said = f',"type":{_dumps(_METRIC_TYPES[number])}' if number else ""
    return f'{said},"unit":{_dumps(unit)}' if unit else said


def _start(milliseconds: int) -> str:
    return f',"start_ms":{milliseconds}' if milliseconds else ""


def _value(value: float) -> str:
    """Return a value as JSON has it: it has no NaN and no infinity, so these have a name beside null."""
    return f'"value":{value!r}' if math.isfinite(value) else f'"value":null,"special":"{_special(value)}"'


def _special(value: float) -> str:
    if math.isnan(value):
        return "stale" if struct.pack("<d", value) == _STALE else "NaN"
    return "+Inf" if value > 0 else "-Inf"


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else _special(value)


def _histogram(histogram: Any, most_bytes: int) -> str:  # noqa: ANN401  a message
    elements = sum(len(getattr(histogram, name)) for name, (_, kind) in _HISTOGRAM.items() if " " in kind)
    if elements * _ELEMENT_BYTES > most_bytes:
        raise _TooLargeError(f"a histogram of {elements} elements, a record has {most_bytes} bytes at most")
    hint = histogram.reset_hint
    found: dict[str, object] = {
        "count": histogram.count_int if histogram.HasField("count_int") else _number(histogram.count_float),
        "sum": _number(histogram.sum),
        "schema": histogram.schema,
        "zero_threshold": _number(histogram.zero_threshold),
        "zero_count": (
            histogram.zero_count_int if histogram.HasField("zero_count_int") else _number(histogram.zero_count_float)
        ),
        "reset_hint": _RESET_HINTS[hint] if 0 <= hint < len(_RESET_HINTS) else None,
    }
    for side in ("negative", "positive"):
        found[f"{side}_spans"] = [[span.offset, span.length] for span in getattr(histogram, f"{side}_spans")]
        found[f"{side}_deltas"] = list(getattr(histogram, f"{side}_deltas"))
        found[f"{side}_counts"] = [_number(count) for count in getattr(histogram, f"{side}_counts")]
    found["custom_values"] = [_number(value) for value in histogram.custom_values]
    return _dumps(found)


def _dumps(value: object) -> str:
    return _ENCODER.encode(value).decode()
