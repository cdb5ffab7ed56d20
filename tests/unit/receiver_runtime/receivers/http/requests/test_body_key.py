"""Check the key in a body of JSON."""

from __future__ import annotations

import pytest

from receiver_runtime.receivers.http.requests.idempotency_key import BodyKey
from receiver_runtime.receivers.http.requests.parsing_limits import UNLIMITED, ParsingLimits
from receiver_runtime.receivers.http.requests.pushed import PushRefusedError
from receiver_runtime.receivers.http.requests.refusals import RefusedError


@pytest.mark.parametrize(
    ("pointer", "body", "key"),
    [
        ("/id", b'{"id": "evt_1", "more": {"id": 2}}', "evt_1"),
        ("/id", b'\xef\xbb\xbf {"id": 17}', "17"),
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


def test_a_body_of_too_many_values_is_refused() -> None:
    with pytest.raises(PushRefusedError):
        BodyKey("/0/id").of(b"[%s1]" % (b"1," * 1000), ParsingLimits(most_values=100))
