"""Check push requests to Loki, in JSON and in protobuf: their rows, what is rejected alone, and the answers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_contrib.loki.push import _MESSAGES, labels_in, parse_push
from receiver_runtime.receivers.http.declaration import Http
from receiver_runtime.receivers.http.requests.parsing_limits import UNLIMITED, ParsingLimits
from receiver_runtime.receivers.http.requests.pushed import TARGET_PATH, PushedRows, PushRefusedError
from tests.unit.receiver_runtime.receivers.http.http_client import JSON, listening

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

PUSH = "/loki/api/v1/push"
PROTOBUF = {"Content-Type": "application/x-protobuf"}
SOURCE = Http(listen="127.0.0.1:0", max_record_bytes="10 KB")
LABELS = {"job": "web", "path": 'a"b\\c\n\u00e9'}


def in_json(*values: object, labels: object = LABELS) -> bytes:
    return json.dumps({"streams": [{"stream": labels, "values": list(values)}]}).encode()


def message(
    *entries: tuple[int, int, bytes, Mapping[bytes, bytes]], labels: bytes = b'{job="web", path="a\\"b\\\\c\\n\\u00e9"}'
) -> bytes:
    made = _MESSAGES["PushRequest"]()
    stream = made.streams.add(labels=labels)
    for seconds, nanos, line, metadata in entries:
        entry = stream.entries.add(line=line)
        entry.timestamp.seconds, entry.timestamp.nanos = seconds, nanos
        for name, value in metadata.items():
            entry.metadata.add(name=name, value=value)
    data: bytes = made.SerializeToString()
    return data


def snapped(body: bytes) -> bytes:
    data: bytes = pa.compress(body, codec="snappy", asbytes=True)
    return data


def parsed(body: bytes, kind: bytes = b"application/json", **fields: Any) -> PushedRows:  # noqa: ANN401
    source = SOURCE.model_copy(update=fields)
    return parse_push([(b"content-type", kind), (TARGET_PATH, PUSH.encode())], body, source, UNLIMITED)


def rows(found: PushedRows) -> list[tuple[bytes, dict[str, str]]]:
    return [(row["body"], dict(row["attributes"])) for row in found.batch.to_pylist()]


def test_json_and_protobuf_make_the_same_rows() -> None:
    expected = [
        (b"one", {"labels.job": "web", "labels.path": LABELS["path"], "timestamp": "1700000000000000001"}),
        (b"", {"labels.job": "web", "labels.path": LABELS["path"], "timestamp": "5", "metadata.trace": "x"}),
    ]
    assert rows(parsed(in_json(["1700000000000000001", "one"], ["5", "", {"trace": "x"}]))) == expected
    sent = message((1_700_000_000, 1, b"one", {}), (0, 5, b"", {b"trace": b"x"}))
    assert rows(parsed(snapped(sent), b"application/x-protobuf")) == expected


def test_an_entry_that_is_none_is_rejected_alone_and_can_be_sent_again() -> None:
    bad = [["x", "a"], ["1"], [None, "a"], ["1", "a", {"n": 5}], ["1", "x" * 20_000], "y"]
    found = parsed(in_json(["1", "good"], *bad, ["2", "good"]))
    assert [body for body, _ in rows(found)] == [b"good", b"good"]
    assert [json.loads(one.data) for one in found.rejected] == [
        {"streams": [{"stream": LABELS, "values": [one]}]} for one in bad
    ]
    assert [one.reason.label for one in found.rejected] == [
        "record_too_large" if one == ["1", "x" * 20_000] else "unparsable" for one in bad
    ]
    both = b'{"streams":[{"stream":{"a":1},"values":[]},' + in_json(["1", "good"])[len(b'{"streams": [') :]
    assert (len(rows(parsed(both))), len(parsed(both).rejected)) == (1, 1)
    entries = [(0, 1, b"good", {}), (0, 2, b"x" * 20_000, {}), (0, 3, b"bad", {b"n": b"\xff"})]
    found = parsed(snapped(message(*entries)), b"application/x-protobuf")
    assert [body for body, _ in rows(found)] == [b"good"]
    assert [one.data for one in found.rejected] == [message(entries[1]), message(entries[2])]


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"", b"application/json", 400),
        (b'{"streams":5}', b"application/json", 400),
        (in_json(["x", "a"]), b"application/json", 400),
        (in_json(["1", "x" * 20_000]), b"application/json", 413),
        (snapped(message((0, 1, b"a", {}), labels=b"job")), b"application/x-protobuf", 400),
        (snapped(b"\xff"), b"application/x-protobuf", 400),
        (message((0, 1, b"a", {})), b"application/x-protobuf", 400),
        (b"\xff\xff\xff\xff\x7fx", b"application/x-protobuf", 413),
        (b"x", b"text/plain", 415),
    ],
)
def test_a_request_without_an_entry_is_refused(body: bytes, kind: bytes, status: int) -> None:
    with pytest.raises(PushRefusedError) as refused:
        parsed(body, kind)
    assert refused.value.status == status


def test_labels_that_each_entry_repeats_are_counted() -> None:
    body = in_json(*[["1", "a"]] * 1000, labels={"long": "x" * 1000})
    assert parsed(body).batch.num_rows == 1000
    with pytest.raises(PushRefusedError, match="max_waiting_bytes") as refused:
        parsed(body, max_waiting_bytes=500_000)
    assert refused.value.status == 413


@pytest.mark.parametrize("is_json", [True, False])
def test_labels_that_each_dead_letter_repeats_are_counted(is_json: bool) -> None:
    long = "x" * 32_768
    if is_json:
        body, kind = in_json(["1", "good"], *[["x", "a"]] * 100, labels={"long": long}), b"application/json"
    else:
        entries = [(0, 1, b"good", {}), *[(0, 2, b"bad", {b"n": b"\xff"})] * 100]
        body = snapped(message(*entries, labels=b'{long="%b"}' % long.encode()))
        kind = b"application/x-protobuf"
    assert len(parsed(body, kind).rejected) == 100
    with pytest.raises(PushRefusedError, match="max_waiting_bytes") as refused:
        parsed(body, kind, max_waiting_bytes=2**20)
    assert refused.value.status == 413


def test_the_time_is_checked_at_each_dead_letter() -> None:
    looks = 0

    def clock() -> float:
        nonlocal looks
        looks += 1
        return 0.0

    body = in_json(["1", "good"], *[["x", "a"]] * 100)
    parse_push([(b"content-type", b"application/json")], body, SOURCE, ParsingLimits(clock=clock))
    assert looks > 100


def test_labels_of_more_than_64_kib_are_not_read() -> None:
    long = message((0, 1, b"a", {}), labels=b'{long="%b"}' % (b"x" * 65 * 1024))
    found = parsed(snapped(message((0, 1, b"good", {})) + long), b"application/x-protobuf")
    assert [body for body, _ in rows(found)] == [b"good"]
    assert [(one.data, one.why) for one in found.rejected] == [(long, "labels: they are longer than 64 KiB")]


_NAMES = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,5}", fullmatch=True)


@settings(max_examples=60)
@given(st.dictionaries(_NAMES, st.text(max_size=8), max_size=4))
def test_labels_are_read_as_they_are_written(labels: dict[str, str]) -> None:
    # As Go's strconv.Quote writes them, whose escapes are those of JSON, except for what is not printable.
    quoted = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in labels.items())
    if "\\ud" not in quoted and "\\u00" not in quoted:
        assert labels_in(f"{{{quoted}}}".encode()) == labels


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        (b"{}", {}),
        (b' { a = "1" , "b c"="2", } ', {"a": "1", "b c": "2"}),
        (b'{a="\\x41\\101\\u00e9\\U0001F600\\a"}', {"a": "AA\u00e9\U0001f600\a"}),
    ],
)
def test_labels_in_all_their_forms(text: bytes, labels: dict[str, str]) -> None:
    assert labels_in(text) == labels


@pytest.mark.parametrize(
    ("text", "why"),
    [
        *(
            (b"", "no braces"),
            (b"a", "no braces"),
            (b'{a="1"', "no braces"),
            (b'{a="1" b="2"}', "begins no label"),
        ),
        *((b"{a=1}", "begins no label"), (b'{a="1",a="2"}', "'a' is there twice"), (b'{a="\\q"}', "q is no escape")),
        *((b'{a="\\ud800"}', "surrogates"), (b'{a="\\777"}', "777 is no byte"), (b'{a="\\xff"}', "invalid start byte")),
        *((b'{a="\\U99999999"}', "U99999999 is no character"), (b'{a="\xff"}', "invalid start byte")),
    ],
)
def test_labels_that_are_none(text: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        labels_in(text)


def test_a_repeated_request_is_stored_once_and_answers_are_text(tmp_path: Path) -> None:
    with listening(tmp_path, protocols="loki", headers="X-Scope-OrgID", acknowledgement_timeout="300ms") as made:
        body, tenant = in_json(["1", "one"], ["1", "one"]), {"X-Scope-OrgID": "t"}
        for _ in range(2):
            answer = made.post(body, {**JSON, **tenant}, path=PUSH)
            assert (answer.status, answer.body, "content-length" in answer.headers) == (204, b"", False)
        again = {**JSON, "Idempotency-Key": "k"}
        assert made.post(body, again, path="/api/prom/push").status == 204
        for encoding in ({}, {"Content-Encoding": "snappy"}):
            assert made.post(snapped(message((0, 1, b"two", {}))), {**PROTOBUF, **encoding}, path=PUSH).status == 204
        assert [row["body"] for row in made.rows()] == [b"one", b"one", b"one", b"one", b"two"]
        assert dict(made.rows()[0]["attributes"])["x-scope-orgid"] == "t"
        refused = made.post(b"x", JSON, path=PUSH)
        assert (refused.status, refused.headers["content-type"]) == (400, "text/plain; charset=utf-8")
        made.log.away = True
        away = made.post(in_json(["9", "x"]), JSON, path=PUSH)
        assert (away.status, away.headers["retry-after"]) == (503, "5")
        made.log.away = False
