"""Check requests to the Event Collector: which rows they make, what is refused alone, and how each is answered."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_contrib.splunk_hec.events import parse_events, parse_raw
from receiver_runtime.block_store.frames.columns import arrow_schema
from receiver_runtime.receivers.http.declaration import Http
from receiver_runtime.receivers.http.requests.parsing_limits import UNLIMITED
from receiver_runtime.receivers.http.requests.pushed import TARGET_PATH, TARGET_QUERY, PushedRows, PushRefusedError
from receiver_runtime.record_formats.typed_rows import TypedRows
from receiver_runtime.sources.records.json_records import Json
from tests.unit.receiver_runtime.receivers.http.http_client import listening

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SOURCE = Http(listen="127.0.0.1:0", max_record_bytes="10 KB", query_parameters=("host", "time"))
EVENT = "/services/collector/event"
CHANNEL = {"X-Splunk-Request-Channel": "0aeeac95-ac74-4aa9-b30d-6c4c0ac581ba"}


def events(*found: object) -> bytes:
    return b"".join(one if isinstance(one, bytes) else json.dumps(one).encode() for one in found)


def parsed(body: bytes, query: bytes = b"") -> PushedRows:
    return parse_events([(TARGET_PATH, EVENT.encode()), (TARGET_QUERY, query)], body, SOURCE, UNLIMITED)


def rows(found: PushedRows) -> list[tuple[bytes, str, dict[str, str]]]:
    return [(row["body"], row["content_type"], dict(row["attributes"] or ())) for row in found.batch.to_pylist()]


def test_an_events_value_is_the_body_and_the_rest_attributes() -> None:
    body = events(
        {"event": {"a": [1, "x"]}, "time": 1426279439.120, "host": "h", "sourcetype": "_json"},
        b'\n{"event": "caf\\u00e9 }{ \\"", "time": "1426279439", "fields": {"r": "b", "n": 7, "l": ["x"]}, "more": {}}',
        b' {"event": 5, "index": "main", "source": "s", "fields": null}',
    )
    assert rows(parsed(body, b"host=asked&index=i")) == [
        (
            b'{"a": [1, "x"]}',
            "application/json",
            {"host": "h", "index": "i", "sourcetype": "_json", "time": "1426279439.12"},
        ),
        (
            'caf\u00e9 }{ "'.encode(),
            "text/plain; charset=utf-8",
            {
                "host": "asked",
                "index": "i",
                "time": "1426279439",
                "fields.r": "b",
                "fields.n": "7",
                "fields.l": '["x"]',
            },
        ),
        (b"5", "application/json", {"host": "asked", "source": "s", "index": "main"}),
    ]


def test_what_an_event_says_replaces_what_the_request_and_the_source_say() -> None:
    found = rows(parsed(events({"event": "x", "time": 1}, {"event": "y"}), b"time=2&host=h"))
    assert [attributes for _, _, attributes in found] == [{"host": "h", "time": "1"}, {"host": "h", "time": "2"}]


def test_an_object_that_is_no_event_is_rejected_alone() -> None:
    bad = [
        *({"evt": 1}, {"event": None}, {"event": ""}, {"event": 1, "time": [1]}, {"event": 1, "host": 5}),
        *({"event": 1, "fields": "x"}, {"event": "x" * 20_000}),
        *(b'{"event": NaN}', b'{"event": "\xff"}', b'{"event": "\\ud800"}'),
    ]
    found = parsed(events({"event": "a"}, *bad, {"event": "b"}))
    assert [body for body, _, _ in rows(found)] == [b"a", b"b"]
    assert [one.data for one in found.rejected] == [events(one) for one in bad]
    assert [one.reason.label for one in found.rejected] == [
        "record_too_large" if index == 6 else "unparsable" for index in range(len(bad))
    ]
    assert [one.why.partition(":")[0] for one in found.rejected] == [f"event {n + 1}" for n in range(len(bad))]


@pytest.mark.parametrize(
    ("body", "status", "why"),
    [
        (b" \r\n", 400, "No data"),
        (b'{"evt": 1}', 400, "Event field is required"),
        (b'{"event": ""}', 400, "Event field cannot be blank"),
        (b'{"event": 1}, {"event": 2}', 400, "malformed"),
        (b'[{"event": 1}]', 400, "braces"),
        (b'{"event": 1} x', 400, "braces"),
        (b'{"event": {', 400, "braces"),
        (b'}{"event": 1}', 400, "braces"),
        (b"x", 400, "braces"),
        (events({"event": "x" * 20_000}), 413, "max_record_bytes"),
    ],
)
def test_a_request_without_an_event_is_refused(body: bytes, status: int, why: str) -> None:
    if why == "malformed":
        # The first object is an event; what follows the comma is none.
        found = parsed(body)
        assert (found.batch.num_rows, [one.data for one in found.rejected]) == (1, [b', {"event": 2}'])
        return
    with pytest.raises(PushRefusedError, match=why) as refused:
        parsed(body)
    assert refused.value.status == status


_TEXTS = st.text(st.sampled_from('{}"\\ x\n\u00e9'), max_size=6)
_SOME = st.lists(st.tuples(_TEXTS, st.booleans()), min_size=1, max_size=6)


@settings(max_examples=60)
@given(_SOME)
def test_objects_are_found_by_their_braces_whatever_is_in_their_strings(some: Sequence[tuple[str, bool]]) -> None:
    sent = [json.dumps({"event": {"t": text}} if good else {"other": text}).encode() for text, good in some]
    found = parsed(b"".join([*sent, b'{"event": 1}']))
    assert [body for body, _, _ in rows(found)][:-1] == [
        json.dumps({"t": text}).encode() for text, good in some if good
    ]
    assert [one.data for one in found.rejected] == [one for one, (_, good) in zip(sent, some, strict=True) if not good]


@pytest.mark.parametrize("count", [2, 300])
def test_each_raw_line_is_a_row(count: int) -> None:
    body = b"".join(b"line %d\n" % number for number in range(count))
    headers = [(TARGET_PATH, b"/services/collector/raw"), (TARGET_QUERY, b"sourcetype=access&channel=x")]
    found = parse_raw(headers, body, SOURCE, UNLIMITED)
    assert rows(found) == [
        (b"line %d" % number, "text/plain; charset=utf-8", {"sourcetype": "access"}) for number in range(count)
    ]


def test_senders_hear_what_splunk_would_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", "abc")
    fields: dict[str, Any] = {"protocols": "splunk_hec", "tokens": "env:A_TOKEN", "acknowledgement_timeout": "300ms"}
    with listening(tmp_path, **fields) as made:
        body = events({"event": "x"})

        def said(body: bytes, headers: dict[str, str], path: str = EVENT) -> tuple[int, int]:
            answer = made.post(body, headers, path=path)
            return answer.status, answer.json()["code"]

        token = {"Authorization": "Splunk abc"}
        assert said(body, {}) == (401, 2)
        assert said(body, {"Authorization": "Splunk x"}) == (403, 4)
        assert made.ask("GET", "/services/collector/health").json() == {"text": "HEC is healthy", "code": 17}
        for path in ("/services/collector", EVENT, f"{EVENT}/1.0", "/services/collector/raw"):
            assert said(body, token, path) == (200, 0)
        assert said(gzip.compress(body), {**token, "Content-Encoding": "gzip"}) == (200, 0)
        assert said(b"", token) == (400, 5)
        assert said(b"{}", token) == (400, 12)
        assert said(b'{"event":""}', token) == (400, 13)
        assert said(b"x", token) == (400, 6)
        assert made.ask("GET", EVENT, headers=token).status == 405
        assert [row["body"] for row in made.rows()] == [b"x", b"x", b"x", b'{"event": "x"}', b"x"]
        made.log.away = True
        away = made.post(body, token, path=EVENT)
        assert (away.status, away.json()["code"]) == (503, 9)
        assert int(away.headers["retry-after"]) >= 1
        made.log.away = False


def test_an_id_is_given_for_what_is_registered_and_is_true_then(tmp_path: Path) -> None:
    with listening(tmp_path, protocols="splunk_hec") as made:
        body = events({"event": "x"})
        ids = [made.post(body, CHANNEL, path=EVENT).json()["ackId"] for _ in range(3)]
        assert len(set(ids)) == 3
        assert "ackId" in made.post(body, {}, path="/services/collector/raw?channel=x").json()
        assert "ackId" not in made.post(body, {}, path=EVENT).json()
        asked = made.post(json.dumps({"acks": ids}).encode(), CHANNEL, path="/services/collector/ack")
        assert asked.json() == {"acks": {str(one): True for one in ids}}
        for headers, question in (({}, b'{"acks": [1]}'), (CHANNEL, b'{"acks": ["x"]}'), (CHANNEL, b"")):
            assert made.post(question, headers, path="/services/collector/ack").status == 400
        assert made.post(b'{"acks": [1]}', {}, path="/services/collector/ack").json()["code"] == 10
        # What is not registered yet has no id.
        buffered = made.post(body, CHANNEL, path=f"{EVENT}?ack=buffered")
        assert (buffered.status, "ackId" in buffered.json()) == (202, False)


def test_events_that_fit_no_column_are_refused_and_kept(tmp_path: Path) -> None:
    check = TypedRows(Json("n BIGINT"), arrow_schema(Http.columns), Http.record_column)
    with listening(tmp_path, protocols="splunk_hec", row_check=check) as made:
        refused = made.post(events({"event": {"n": "x"}}), {}, path=EVENT)
        assert (refused.status, refused.json()["code"]) == (400, 6)
        assert made.post(events({"event": {"n": "x"}}, {"event": {"n": 1}}), CHANNEL, path=EVENT).status == 200
        assert [row["n"] for row in made.rows()] == [1]
        assert len(made.rig.dead_letters()) == 2
