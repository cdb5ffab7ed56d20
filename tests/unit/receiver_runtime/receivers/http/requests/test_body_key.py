"""Check the key in a body of JSON."""

from __future__ import annotations

import pytest

from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.receivers.http.requests.idempotency_key import BodyKey, FormKey, keyed
from receiver_runtime.receivers.http.requests.parsing_limits import UNLIMITED, ParsingLimits, ParsingStoppedError
from receiver_runtime.receivers.http.requests.pushed import MOST_REJECTED, PushRefusedError
from receiver_runtime.receivers.http.requests.records import Plain, parse_plain
from receiver_runtime.receivers.http.requests.refusals import RefusedError


@pytest.mark.parametrize(
    ("pointer", "body", "key"),
    [
        ("/id", b'{"id": "evt_1", "more": {"id": 2}}', "evt_1"),
        ("/id", b' {"id": 17}', "17"),
        ("/id", b'{"id": "17"}', "17"),
        ("/id", b'{"id": "\\"17\\""}', '"17"'),
        ("/data/id", b'{"id": 1, "data": {"id": "a"}}', "a"),
        ("/0/id", b'[{"id": "first"}, {"id": "second"}]', "first"),
        ("/1", b'{"1": "a member"}', "a member"),
        ("/a~1b~0c", b'{"a/b~c": "x"}', "x"),
        ("/", b'{"": "empty"}', "empty"),
        ("/id", b'{"id": null}', None),
        ("/id", b'{"id": 1.5}', None),
        ("/id", b'{"id": true}', None),
        ("/id", b'{"id": {"a": 1}}', None),
        ("/id", b'{"ID": "a"}', None),
        ("/id/a", b'{"id": "b"}', None),
        ("/3", b'["a"]', None),
        ("/-1", b'["a"]', None),
        ("/00", b'["a"]', None),
        ("/id", b'{"id": "a"}{"id": "b"}', None),
        ("/id", b"no JSON", None),
        ("/id", b"", None),
        ("/id", b'{"id": ' + b"[" * 100_000, None),
        ("/id", b'{"id": "\xff"}', None),
    ],
)
def test_a_pointer_finds_a_text_or_a_whole_number(pointer: str, body: bytes, key: str | None) -> None:
    assert BodyKey(pointer).of(body, UNLIMITED) == key


@pytest.mark.parametrize("key", [b'""', b'"\xc3\xa9"', b'"a\\nb"', b'"' + b"k" * 256 + b'"'])
def test_what_is_no_key_is_refused(key: bytes) -> None:
    with pytest.raises(RefusedError, match=r"body:/id: .* is no key"):
        BodyKey("/id").of(b'{"id": %s}' % key, UNLIMITED)


def test_quotes_in_a_form_are_part_of_its_key() -> None:
    assert FormKey("id").of(b"id=%221%22", UNLIMITED) == '"1"'


def test_a_body_of_too_many_values_is_refused() -> None:
    with pytest.raises(PushRefusedError):
        BodyKey("/0/id").of(b"[%s1]" % (b"1," * 1000), ParsingLimits(most_values=100))


def taken(body: bytes, pointer: str = "/id", kind: bytes = b"application/json", form: str = "auto") -> Plain:
    headers = [(b"content-type", kind)]
    plain = parse_plain(headers, body, most_bytes=1000, form=form)
    return keyed(plain, BodyKey(pointer), headers, body, UNLIMITED)


_LINES = b"application/x-ndjson"


@pytest.mark.parametrize(
    ("pointer", "kind", "body", "keys"),
    [
        ("/id", b"application/json", b'[{"id": 1}, {"id": "b"}, {"no": 1}, 4]', ["1", "b", None, None]),
        ("/id", b"application/json", b'[{"id": 1}]', ["1"]),
        ("/a/0", _LINES, b'{"a": [1]}\n\n{"a": ["b"]}\n{"a": []}', ["1", "b", None]),
        ("/id", _LINES, b"".join(b'{"id": %d}\n' % n for n in range(100)), [str(n) for n in range(100)]),
        ("/0", b"application/json", b'[["a", 1], ["b", 2]]', ["a", "b"]),
        ("/id", b"application/json-seq", b'\x1e{"id": 1}\n\x1e{"id": 2}\n', ["1", "2"]),
        ("/id", b"text/plain", b'{"id": 1} \nno JSON\n{"id": 2}', ["1", None, "2"]),
    ],
)
def test_each_record_of_several_has_its_own_key(pointer: str, kind: bytes, body: bytes, keys: list[str | None]) -> None:
    found = taken(body, pointer, kind)
    assert (found.key, found.keys, len(found.bodies), [*found.rejected]) == (None, keys, len(keys), [])


@pytest.mark.parametrize(
    ("pointer", "body", "key"),
    [("/id", b'{"id": 1}', "1"), ("/0/id", b'[{"id": 1}, {"id": 2}]', "1"), ("/0", b'["a", "b"]', "a")],
)
def test_a_key_of_the_whole_body_is_the_requests(pointer: str, body: bytes, key: str) -> None:
    found = taken(body, pointer)
    assert (found.key, found.keys) == (key, None)


def test_records_without_keys_stay_as_they_were_cut() -> None:
    body = b'{"no": 1}\n' * 100
    headers = [(b"content-type", _LINES)]
    plain = parse_plain(headers, body, most_bytes=1000)
    assert keyed(plain, BodyKey("/id"), headers, body, UNLIMITED) is plain
    assert keyed(plain, FormKey("id"), headers, body, UNLIMITED) is plain


def test_a_record_whose_key_is_none_or_anothers_refuses_no_other() -> None:
    body = b'{"id": "a"}\n{"id": ""}\n{"id": "a", "b": 2}\n{"id": \n{"id": "a"}\n{"id": "c"}'
    found = taken(body, kind=_LINES)
    assert (found.bodies, found.keys) == ([b'{"id": "a"}', b'{"id": "c"}'], ["a", "c"])
    assert [(one.data, one.reason) for one in found.rejected] == [
        (b'{"id":', DeadLetterReason.UNPARSABLE),
        (b'{"id": ""}', DeadLetterReason.UNPARSABLE),
        (b'{"id": "a", "b": 2}', DeadLetterReason.REPEATED_KEY),
    ]
    assert found.rejected[1].why.startswith("record 2: body:/id: '' is no key: send ")
    assert found.rejected[2].why == "record 3: another one has its key, 'a', and other content"


def test_keys_that_are_none_refuse_a_request_without_another_record() -> None:
    with pytest.raises(PushRefusedError, match=r"record 1: body:/id: '' is no key: .* none of them is kept"):
        taken(b'[{"id": ""}, {"id": ""}]')
    with pytest.raises(PushRefusedError, match="none of them is kept"):
        taken(b'{"id": "a"}\n' + b'{"id": ""}\n' * (MOST_REJECTED + 1), kind=_LINES)


def test_looking_for_keys_ends_in_time() -> None:
    limits = ParsingLimits()
    limits.stop()
    plain = Plain([b"1"] * 2000, None)
    with pytest.raises(ParsingStoppedError):
        keyed(plain, BodyKey("/id"), [], b"", limits)
