"""Fuzz the check of signatures, and the keys in a body of JSON and in its records."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote_to_bytes

import pyarrow as pa

from receiver_runtime.receivers.http.requests.idempotency_key import BodyKey, keyed
from receiver_runtime.receivers.http.requests.pushed import PushRefusedError, header
from receiver_runtime.receivers.http.requests.records import Plain, parse_plain
from receiver_runtime.receivers.http.requests.refusals import RefusedError
from receiver_runtime.receivers.http.requests.signatures import SignatureCheck, _form
from receiver_runtime.sources.fields.hmac_signature import Hmac
from tests.fuzz.http_bodies import MOST_BYTES, check_refusal, check_taken, limits, refused
from tests.fuzz.target import fuzzed
from tests.fuzz.test_heads import headers_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_SECRET = "a-secret"
_NOW = 1_700_000_000
_URL = "https://hooks.example/v1/s"


@contextmanager
def _environment() -> Iterator[None]:
    os.environ["A_FUZZED_HOOK"] = _SECRET
    try:
        yield
    finally:
        del os.environ["A_FUZZED_HOOK"]


with _environment():
    _PARTED = SignatureCheck(
        Hmac(
            secrets="env:A_FUZZED_HOOK",
            header="X-Signature",
            payload="{id}.{timestamp}.{body}",
            prefix="v1=",
            separator=",",
            id_from="header:x-id",
            timestamp_from="signature:t",
        ),
        clock=lambda: _NOW,
    )
    _FORM = SignatureCheck(
        Hmac(
            secrets="env:A_FUZZED_HOOK",
            header="X-Signature",
            encoding="base64",
            algorithm="sha1",
            payload="{url}{form}",
            url=_URL,
            body_hash_parameter="hash",
        )
    )


def _hex(payload: bytes) -> str:
    return hmac.new(_SECRET.encode(), payload, hashlib.sha256).hexdigest()


def _base64(payload: bytes) -> bytes:
    return base64.b64encode(hmac.new(_SECRET.encode(), payload, hashlib.sha1).digest())


def _is_good(check: SignatureCheck, message: bytes) -> bool:
    """Check a message: its query, its head and its body, with a blank line between them."""
    query, _, rest = message.partition(b"\n\n")
    head, _, body = rest.partition(b"\n\n")
    try:
        check.begin(headers_of(head), query).check(body)
    except (PushRefusedError, RefusedError) as error:
        check_refusal(error, frozenset({400, 401}))
        return False
    return True


_BODY = b'{"id": 1}'
_GOOD = b"\n\nx-id: 7\nx-signature: t=%d,v1=%s,v1=00\n\n%s" % (_NOW, _hex(b"7.%d.%s" % (_NOW, _BODY)).encode(), _BODY)


@fuzzed(
    "http_signature",
    valid=[_GOOD, _GOOD.replace(b"x-id: 7", b"x-id: 8"), _GOOD.replace(b"t=17", b"t=16")],
    words=[b"t=", b"v1=", b",", b"\n\n", b"x-signature:", b"\xff", b"\xc2\xb2"],
    attacks=[b"\n\nx-id: 7\nx-signature: t=1700000000," + b"v1=," * 15_000, b"\n\nx-signature: t=" + b"9" * 60_000],
)
def test_a_signature_is_good_only_if_the_hmac_says_so(message: bytes) -> None:
    if not _is_good(_PARTED, message):
        assert message != _GOOD
        return
    head, _, body = message.partition(b"\n\n")[2].partition(b"\n\n")
    headers = headers_of(head)
    signature = header(headers, b"x-signature") or ""
    name = (header(headers, b"x-id") or "").encode("latin-1")
    [at] = [part.strip()[2:] for part in signature.split(",") if part.strip().startswith("t=")]
    assert abs(int(at) - _NOW) <= 300
    assert f"v1={_hex(b'%s.%s.%s' % (name, at.encode(), body))}" in signature.lower()


def _check_form(body: bytes) -> None:
    """Check that a form is read as the standard library reads it, and that no octet of it passes for a separator."""
    separates = {0xFE, 0xFF} & set(unquote_to_bytes(body))
    try:
        found = _form(body)
    except RefusedError:
        return
    assert not separates
    with suppress(UnicodeDecodeError):
        pairs = parse_qsl(body.decode(), keep_blank_values=True, errors="strict")
        assert found == "".join(name + value for name, value in sorted(set(pairs))).encode()


_PAIRS = b"b=2&a=1&a=0&c=%C3%BC+d&e="
_SIGNED_FORM = b"q=1\n\ncontent-type: application/x-www-form-urlencoded\nx-signature: %s\n\n%s" % (
    _base64(_URL.encode() + b"?q=1a0a1b2c\xc3\xbc de"),
    _PAIRS,
)
_HASHED = b"hash=%s" % hashlib.sha256(_BODY).hexdigest().encode()
_SIGNED_HASH = b"%s\n\nx-signature: %s\n\n%s" % (_HASHED, _base64(_URL.encode() + b"?" + _HASHED), _BODY)


@fuzzed(
    "http_signed_form",
    valid=[_SIGNED_FORM, _SIGNED_HASH],
    words=[b"&", b"=", b"%", b"+", b"hash=", b"content-type:", b"application/x-www-form-urlencoded", b"\xff"],
    attacks=[_SIGNED_FORM + b"&a" * 30_000, b"hash=1&" * 9000 + _SIGNED_HASH, b"a=1%FFb%FE2", b"a=1\xffb\xfe2"],
)
def test_a_signed_form_is_good_only_if_no_name_or_value_was_changed(message: bytes) -> None:
    _check_form(message)
    if not _is_good(_FORM, message):
        assert message not in {_SIGNED_FORM, _SIGNED_HASH}
        return
    query, _, rest = message.partition(b"\n\n")
    head, _, body = rest.partition(b"\n\n")
    given = (header(headers_of(head), b"x-signature") or "").encode("latin-1")
    if query == _HASHED:
        assert (given, body) == (_base64(_URL.encode() + b"?" + _HASHED), _BODY)
    else:
        # A form is signed by its names and values: `+` is `%20`, and pairs have any order.
        assert query == b"q=1"
        assert given == _base64(_URL.encode() + b"?q=1a0a1b2c\xc3\xbc de")


@fuzzed(
    "http_body_key",
    valid=[
        b'{"data": [{"id": "evt_1"}, 2], "id": 3}',
        b'{"data": [{"id": 17}]}',
        b'\xef\xbb\xbf{"data": [{"id": "a"}]}',
    ],
    words=[b'"data"', b'"id"', b"[", b"{", b"null", b"1e400", b"\\u0000", b"\xff"],
    attacks=[b'{"data": ' + b"[" * 60_000, b'{"data": [' + b"1," * 15_000 + b'{"id": 1}]}'],
)
def test_a_key_is_what_the_pointer_finds(body: bytes) -> None:
    try:
        key = BodyKey("/data/0/id").of(body, limits())
    except (PushRefusedError, RefusedError) as error:
        check_refusal(error)
        return
    if key is None:
        return
    assert 1 <= len(key) <= 255
    assert key.isascii()
    assert key.isprintable()
    try:
        found = json.loads(body.removeprefix(b"\xef\xbb\xbf"))["data"][0]["id"]
    except ValueError:
        # What is beside the path is only skipped, and the record's own parser says what is wrong with it.
        return
    text = str(found)
    assert key in {text, text[1:-1]}


@fuzzed(
    "http_record_keys",
    valid=[
        b'[{"id": "a"}, {"id": 2}, {"no": 1}, {"id": "a"}]',
        b'{"id": "a"}\n{"id": ""}\n{"id": "a", "b": 1}\n' * 9,
        b'{"id": 1}\n' * 60,
        b'\xef\xbb\xbf[{"id": "a"}]',
    ],
    words=[b'"id"', b"[", b"{", b"null", b"\n", b",", b"\xff", b'"\\ud800"', b"1e400"],
    attacks=[b'[{"id": "a"}%s]' % (b',{"id":""}' * 3000), b"[" * 60_000, b'{"id": ' + b"[" * 60_000],
)
def test_records_have_keys_that_differ_and_none_is_lost(body: bytes) -> None:
    headers = [(b"content-type", b"application/x-ndjson" if b"\n" in body else b"application/json")]
    plain = refused(parse_plain, headers, body, most_bytes=MOST_BYTES, limits=limits())
    if plain is None:
        return
    assert isinstance(plain, Plain)
    try:
        found = keyed(plain, BodyKey("/id"), headers, body, limits())
    except (PushRefusedError, RefusedError) as error:
        check_refusal(error)
        return
    check_taken(headers, found, len(body))
    keys = [None] * len(found.bodies) if found.keys is None else list(found.keys)
    assert len(keys) == len(found.bodies)
    given = [key for key in keys if key is not None]
    assert len(set(given)) == len(given)
    # Each record is there, or rejected, or its equal is there.
    before, after = (
        one.bodies.to_pylist() if isinstance(one.bodies, pa.Array) else one.bodies for one in (plain, found)
    )
    assert set(before) == {*after, *(one.data for one in found.rejected[len(plain.rejected) :])}
