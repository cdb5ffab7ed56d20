"""Fuzz remote-write requests of both versions."""

from __future__ import annotations

import json

from forebay_contrib.prometheus.write import _FIRST, _SECOND, FIRST, SECOND, parse_write
from receiver_runtime.receivers.http.declaration import Http
from receiver_runtime.receivers.http.requests.pushed import TARGET_PATH
from receiver_runtime.receivers.http.requests.route import Answered, AnsweredRows
from tests.fuzz.http_bodies import MOST_BYTES, check_rows, limits, refused
from tests.fuzz.target import fuzzed

_SOURCE = Http(listen="127.0.0.1:0", max_record_bytes=MOST_BYTES, headers="x-tenant")
_POINTS = {
    "samples": [{"value": 1.5, "timestamp": 1}, {"value": float("nan"), "timestamp": 2}],
    "histograms": [{"count_int": 1, "sum": 2.0, "positive_spans": [{"offset": -1, "length": 2}], "timestamp": 3}],
}
_LABELS = [{"name": b"__name__", "value": b"up"}, {"name": b"job", "value": b"caf\xc3\xa9"}]
_OF_FIRST = _FIRST(timeseries=[{"labels": _LABELS, **_POINTS, "exemplars": [{"labels": _LABELS, "value": 1.0}]}] * 2)
_OF_SECOND = _SECOND(
    symbols=[b"", b"__name__", b"up", b"job", b"x"],
    timeseries=[
        {"labels_refs": [1, 2, 3, 4], **_POINTS, "metadata": {"type": 1, "unit_ref": 4}, "created_timestamp": 5},
        {"exemplars": [{"labels_refs": [3, 4], "value": 1.0, "timestamp": 2}]},
    ],
)
_WORDS = [b"\x0a\x00", b"\x12\x00", b"\x22\x00", b"\x2a\x00", b"\xff" * 9 + b"\x01", b"\xf0\x7f", b"\x0a\x02\x01\x63"]
_ATTACKS = [b"\x0a\x00" * 300_000, b"\x2a\x00" * 300_000, b"\x0a" * 100_000, b"\x22\x00" * 15_000]


def _check(message: str, body: bytes) -> None:
    # A Content-Encoding says that the body is decompressed already.
    kind = f"application/x-protobuf;proto={message}".encode()
    headers = [
        *((b"content-type", kind), (b"content-encoding", b"snappy"), (b"x-tenant", b"t")),
        (TARGET_PATH, b"/api/v1/write"),
    ]
    found = refused(parse_write, headers, body, _SOURCE, limits())
    if found is None:
        return
    assert isinstance(found, AnsweredRows)
    rows = check_rows(found, body)
    for row in rows:
        assert isinstance(json.loads(row["body"], parse_constant=lambda name: 1 / 0), dict)
    rows_of_all = found.batch.num_rows
    reply = found.answer(Answered(rows_of_all, 0))
    assert sum(int(count) for _, count in reply.headers) == rows_of_all


@fuzzed("prometheus_1", valid=[_OF_FIRST.SerializeToString(), b""], words=_WORDS, attacks=_ATTACKS)
def test_any_request_of_the_first_version_is_rows_dead_letters_or_refused(body: bytes) -> None:
    _check(FIRST, body)


@fuzzed("prometheus_2", valid=[_OF_SECOND.SerializeToString(), b""], words=_WORDS, attacks=_ATTACKS)
def test_any_request_of_the_second_version_is_rows_dead_letters_or_refused(body: bytes) -> None:
    _check(SECOND, body)
