"""Check CloudEvents over HTTP, from requests to records: the binding's three modes, refusals, and the handshake."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_contrib.cloud_events.events import (
    BATCHED,
    STRUCTURED,
    is_cloud_event,
    parse_cloud_events,
)
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.receivers.http.requests.pushed import Pushed, PushRefusedError
from receiver_runtime.receivers.http.requests.web_hooks import permission

HEADERS = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/shop", "ce-type": "order.placed"}
EVENT = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "order.placed"}
BINARY = [(b"ce-specversion", b"1.0"), (b"ce-id", b"1"), (b"ce-source", b"/shop"), (b"ce-type", b"order.placed")]


def parsed(headers: list[tuple[bytes, bytes]], body: bytes) -> Pushed:
    return parse_cloud_events(headers, body, most_bytes=1000)


def structured(event: object, *, kind: str = STRUCTURED) -> list[Any]:
    body = event if isinstance(event, bytes) else json.dumps(event).encode()
    return list(parsed([(b"content-type", kind.encode())], body).records)


def refused(headers: list[tuple[bytes, bytes]], body: bytes = b"") -> tuple[int, str]:
    with pytest.raises(PushRefusedError) as raised:
        parsed(headers, body)
    return raised.value.status, str(raised.value)


def test_binary_mode_keeps_the_body_and_the_attributes_beside_it() -> None:
    headers = [*BINARY, (b"ce-myext", b"7"), (b"content-type", b"application/json"), (b"x-other", b"no")]
    [record] = parsed(headers, b"[1, 2 ]").records
    assert (record.body, record.content_type) == (b"[1, 2 ]", "application/json")
    assert (record.key, record.id) == ("/shop\n1", "1")
    assert record.attributes == {**HEADERS, "ce-myext": "7"}


def test_binary_mode_without_data_has_no_body() -> None:
    [record] = parsed(BINARY, b"").records
    assert (record.body, record.content_type) == (None, None)


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        (b"Euro%20%E2%82%AC%20%f0%9F%98%80", "Euro € \U0001f600"),
        (b'"quoted \\"a\\\\b\\" %41"', 'quoted "a\\b" A'),
        (b"100%", "100%"),
        ("grün".encode(), "grün"),
        ("Grüße".encode("latin-1"), "Grüße"),
    ],
)
def test_a_header_value_is_unquoted_and_percent_decoded_once(sent: bytes, meant: str) -> None:
    [record] = parsed([*BINARY, (b"ce-subject", sent)], b"").records
    assert record.attributes is not None
    assert record.attributes["ce-subject"] == meant


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ((b"ce-subject", b"%C0%A0"), "ce-subject is no UTF-8"),
        ((b"ce-subject", b"a%0Ab"), "control character"),
        ((b"ce-subject", b""), "subject is empty"),
        ((b"ce-id", b"2"), "ce-id came twice"),
        ((b"ce-datacontenttype", b"text/plain"), "Content-Type is that attribute"),
        ((b"ce-my-ext", b"1"), "no attribute's name"),
        ((b"ce-my_ext", b"1"), "no attribute's name"),
        ((b"ce-data", b"1"), "data are the body"),
        ((b"ce-time", b"2026-01-31 12:00:00Z"), "RFC 3339"),
        ((b"ce-time", b"2026-01-31T12:00:00"), "RFC 3339"),
    ],
)
def test_invalid_binary_events_are_refused(header: tuple[bytes, bytes], words: str) -> None:
    status, said = refused([*BINARY, header])
    assert status == 400
    assert words in said


@pytest.mark.parametrize("name", sorted(EVENT))
def test_each_required_attribute_is_checked(name: str) -> None:
    rest = [pair for pair in BINARY if pair[0] != b"ce-" + name.encode()]
    assert refused(rest) == (400, f"the attribute {name} is missing or empty: every event has one")
    batch = json.dumps([EVENT, {**EVENT, name: ""}]).encode()
    [rejected] = parsed([(b"content-type", BATCHED.encode())], batch).rejected
    assert rejected.why == f"event 1 of the batch: the attribute {name} is missing or empty: every event has one"


def test_another_version_is_refused() -> None:
    assert "specversion is '0.3'" in refused([*BINARY[1:], (b"ce-specversion", b"0.3")])[1]


def test_structured_data_is_kept_byte_for_byte() -> None:
    """Parsing and writing it again would change a number that no float holds, the order of members, and blanks."""
    data = '{"b": 1e400, "a":  12345678901234567890.10, "ü": "\\u00fc"}'
    event = json.dumps(EVENT)[:-1] + f', "data" : {data} }}'
    [record] = structured(event.encode())
    assert (record.body, record.content_type) == (data.encode(), "application/json")
    assert record.key == "/shop\n1"


def test_structured_text_is_stored_as_text_and_base64_as_bytes() -> None:
    [text] = structured({**EVENT, "datacontenttype": "text/xml; charset=utf-8", "data": "<ü/>"})
    assert (text.body, text.content_type) == ("<ü/>".encode(), "text/xml; charset=utf-8")
    [quoted] = structured({**EVENT, "datacontenttype": "application/problem+json", "data": "ü"})
    assert quoted.body == b'"\\u00fc"'
    [raw] = structured({**EVENT, "data_base64": base64.b64encode(b"\xff\x00").decode()})
    assert (raw.body, raw.content_type) == (b"\xff\x00", None)
    [none] = structured(EVENT)
    assert none.body is None
    assert text.attributes == HEADERS


def test_structured_attributes_of_other_types_become_text_and_null_is_left_out() -> None:
    [record] = structured({**EVENT, "count": 12, "flag": True, "subject": None})
    assert record.attributes == {**HEADERS, "ce-count": "12", "ce-flag": "true"}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "is a JSON object"),
        (b"{", "no JSON"),
        (b"[]", "is a JSON object"),
        (b'{"specversion": "1.0"', "no JSON"),
        (b'{1: "1.0"}', "name in double quotes"),
        (json.dumps(EVENT).encode() + b"x", "Extra data"),
        (json.dumps(EVENT).encode()[:-1] + b', "id": "2"}', "'id' is there twice"),
        (json.dumps(EVENT).encode()[:-1] + b', "data": NaN}', "NaN is no JSON"),
        (json.dumps({**EVENT, "ext": 1.5}).encode(), "a number is an integer"),
        (json.dumps({**EVENT, "ext": {}}).encode(), "'ext' is an object"),
        (json.dumps({**EVENT, "id": 1}).encode(), "id is a number: send a string"),
        (json.dumps({**EVENT, "subject": False}).encode(), "subject is a boolean: send a string"),
        (json.dumps({**EVENT, "datacontenttype": []}).encode(), "datacontenttype is an array: send a string"),
        (json.dumps({**EVENT, "ext": []}).encode(), "'ext' is an array"),
        (json.dumps({**EVENT, "subject": "\ud800"}).encode(), "control character"),
        (json.dumps({**EVENT, "datacontenttype": "a\nb"}).encode(), "control character"),
        (json.dumps({**EVENT, "datacontenttype": "text/plain", "data": "\ud800"}).encode(), "surrogate"),
        (json.dumps({**EVENT, "data": 1, "data_base64": "AA=="}).encode(), "both data and data_base64"),
        (json.dumps({**EVENT, "data_base64": "AA"}).encode(), "no Base64"),
        (json.dumps({**EVENT, "data_base64": 1234}).encode(), "no Base64"),
        (json.dumps(EVENT).encode()[:-1] + b', "data": ' + b"[" * 200_000 + b"}", "nested too deeply"),
        (b"\xff", "no UTF-8 from byte 0"),
    ],
)
def test_invalid_structured_events_are_refused(body: bytes, words: str) -> None:
    status, said = refused([(b"content-type", STRUCTURED.encode())], body)
    assert status == 400
    assert words in said


def test_a_batch_becomes_its_events_in_order_with_each_key_once() -> None:
    """An event that is twice in a batch is one event, as CloudEvents says."""
    batch = [{**EVENT, "id": str(number), "data": number} for number in (3, 1, 3, 2)]
    records = structured(batch, kind=f"{BATCHED}; charset=UTF-8")
    assert [(record.body, record.key) for record in records] == [
        (b"3", "/shop\n3"),
        (b"1", "/shop\n1"),
        (b"2", "/shop\n2"),
    ]
    assert structured([], kind=BATCHED) == []


def test_an_odd_event_of_a_batch_refuses_no_other_and_is_kept_as_it_came() -> None:
    odd = [
        b'{"specversion": "1.0",  "id": 1}',
        b"[1]",
        b"null",
        json.dumps({**EVENT, "id": "l", "data": "x" * 999}).encode(),
        b'{"id": "a", "id": "b"}',
        json.dumps({**EVENT, "data": 1, "data_base64": "AA=="}).encode(),
        json.dumps({**EVENT, "data": math.nan}).encode(),
        json.dumps({**EVENT, "subject": "caf\u00e9"}, ensure_ascii=False).encode("latin-1"),
        json.dumps({**EVENT, "subject": "\ud83d"}).encode(),
        json.dumps(EVENT).encode()[:-1] + b', "data": ' + b"[" * 2000 + b"]" * 2000 + b"}",
        json.dumps(EVENT).encode()[:-1] + b', "data": }',
    ]
    good = [json.dumps({**EVENT, "id": f"good-{number}"}).encode() for number in range(len(odd))]
    batch = b",".join(part for pair in zip(good, odd, strict=True) for part in pair)
    found = parsed([(b"content-type", BATCHED.encode())], b"[" + batch + b"]")
    assert [record.id for record in found.records] == [f"good-{number}" for number in range(len(odd))]
    assert [one.data for one in found.rejected] == odd
    reasons = {one.reason for one in found.rejected}
    assert reasons == {DeadLetterReason.UNPARSABLE, DeadLetterReason.RECORD_TOO_LARGE}


@pytest.mark.parametrize(
    "other",
    [{"data": "b"}, {"data": None}, {"type": "t2"}, {"subject": "s"}, {"datacontenttype": "text/plain"}, {"ext": 1}],
)
def test_two_events_with_one_key_and_other_content_are_both_kept(other: dict[str, object]) -> None:
    first = {**EVENT, "data": "a"}
    second = {**first, **other}
    batch = [first, second, {**first, "source": "/other"}, first, second]
    found = parsed([(b"content-type", BATCHED.encode())], json.dumps(batch).encode())
    assert [record.key for record in found.records] == [f"/shop\n{EVENT['id']}", f"/other\n{EVENT['id']}"]
    assert [one.data for one in found.rejected] == [json.dumps(second).encode()] * 2
    assert {one.reason for one in found.rejected} == {DeadLetterReason.REPEATED_KEY}
    assert "event 1 of the batch: another event has its source and its id" in found.rejected[0].why


def test_an_event_that_is_none_of_its_charset_refuses_no_other() -> None:
    good, odd = (json.dumps({**EVENT, "id": name}).encode("utf-16-le") for name in ("good", "odd!"))
    odd = odd.replace("!".encode("utf-16-le"), b"\x00\xd8")
    comma, begin, end = (one.encode("utf-16-le") for one in ",[]")
    kind = f"{BATCHED}; charset=utf-16le".encode()
    found = parsed([(b"content-type", kind)], begin + odd + comma + good + end)
    assert [record.id for record in found.records] == ["good"]
    assert [one.data for one in found.rejected] == [odd]


def test_the_type_of_data_that_were_decoded_speaks_of_what_is_stored() -> None:
    for declared, stored in (
        ("text/xml; charset=iso-8859-1", "text/xml; charset=utf-8"),
        ('application/json; charset="utf-16"; v=1', "application/json; charset=utf-8; v=1"),
        ("text/xml; charset=UTF-8", "text/xml; charset=UTF-8"),
        ("text/xml", "text/xml"),
    ):
        [event] = structured({**EVENT, "datacontenttype": declared, "data": "<ü/>"})
        assert event.content_type == stored
    [event] = structured({**EVENT, "datacontenttype": "text/xml; charset=iso-8859-1", "data_base64": "/A=="})
    assert (event.body, event.content_type) == ("ü".encode("latin-1"), "text/xml; charset=iso-8859-1")


def test_null_is_absent_where_another_member_may_be_in_its_place() -> None:
    assert structured({**EVENT, "data": {"n": 1}, "data_base64": None})[0].body == b'{"n": 1}'
    assert structured({**EVENT, "data": None, "data_base64": "AA=="})[0].body == b"\0"
    assert structured({**EVENT, "data_base64": None})[0].body is None
    assert structured({**EVENT, "subject": None, "data": None})[0].body == b"null"


@pytest.mark.parametrize(
    ("body", "words"),
    [(b"{}", "is a JSON array"), (b"[{}", "is no JSON"), (b"[", "is no JSON"), (b"[1]", "event 0 of the batch")],
)
def test_invalid_batches_are_refused(body: bytes, words: str) -> None:
    status, said = refused([(b"content-type", BATCHED.encode())], body)
    assert status == 400
    assert words in said


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_a_mark_belongs_to_no_event(encoding: str) -> None:
    for kind, event in ((STRUCTURED, EVENT), (BATCHED, [EVENT])):
        body = json.dumps(event).encode(encoding)
        found = parse_cloud_events([(b"content-type", kind.encode())], body, most_bytes=2**20)
        assert [record.id for record in found.records] == [EVENT["id"]]


@pytest.mark.parametrize(
    "kind",
    [b"application/cloudevents+avro", b"application/cloudevents", b"application/cloudevents+json; charset=utf-7"],
)
def test_other_formats_are_415(kind: bytes) -> None:
    assert refused([(b"content-type", kind)], b"{}")[0] == 415


def test_too_large_data_is_413() -> None:
    large = {**EVENT, "id": "2", "data": "x" * 999}
    assert structured({**large, "data": "x" * 998})
    for status, said in (
        refused([(b"content-type", BATCHED.encode())], json.dumps([large]).encode()),
        refused([(b"content-type", STRUCTURED.encode())], json.dumps(large).encode()),
        refused([*BINARY[:1], (b"ce-id", b"2"), *BINARY[2:]], b"x" * 1001),
    ):
        assert status == 413
        assert said.endswith("the event '2' has 1001 bytes of data: max_record_bytes is 1000")


def test_different_pairs_of_source_and_id_have_different_keys() -> None:
    """A key of source and id joined by a blank, for example, would drop one of these."""
    keys = {
        structured({**EVENT, "source": s, "id": i})[0].key for s, i in [("/a", "b c"), ("/a b", "c"), ("/ab", " c")]
    }
    assert len(keys) == 3


def test_which_requests_are_events() -> None:
    assert all(is_cloud_event([pair]) for pair in BINARY)
    assert is_cloud_event([(b"content-type", b"Application/CloudEvents+json")])
    assert not is_cloud_event([(b"content-type", b"application/json"), (b"ce-other", b"x")])


def test_the_handshake_is_answered_for_allowed_origins() -> None:
    request = [(b"webhook-request-origin", b"events.example.com"), (b"webhook-request-rate", b"120")]
    answer = {"WebHook-Allowed-Origin": "events.example.com", "WebHook-Allowed-Rate": "*"}
    assert permission(request, ["*"]) == answer
    assert permission(request, ["other.example.com", "Events.example.com"]) == answer
    assert permission(request, ["example.com"]) is None
    assert permission(request, []) is None
    assert permission([], ["*"]) is None


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(JSON_VALUES, st.sampled_from([None, 2]))
def test_any_data_is_kept_unchanged(data: object, indent: int | None) -> None:
    [record] = structured(json.dumps({**EVENT, "data": data}, indent=indent).encode())
    assert record.body is not None
    assert json.loads(record.body) == data
