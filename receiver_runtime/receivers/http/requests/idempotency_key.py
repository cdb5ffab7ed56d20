"""Read keys: a request's header ``Idempotency-Key``, or what its source names in the body, or in each of its records.

It never decides what the stream has already: it only sees the records of one request.
"""

from __future__ import annotations

import re
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

import msgspec
import pyarrow as pa

from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.receivers.http.requests.pushed import (
    MOST_REJECTED,
    PushRefusedError,
    RejectedRecord,
    header,
    media_type,
)
from receiver_runtime.receivers.http.requests.refusals import RefusedError, refusal
from receiver_runtime.receivers.http.requests.text_bodies import looked_at
from receiver_runtime.sources.fields.hmac_signature import IN_HEADER
from tracker_store.blocks.idempotency_key import WANTED, idempotency_key, is_key
from tracker_store.long_texts import shortened

if TYPE_CHECKING:
    from collections.abc import Callable

    from receiver_runtime.receivers.http.requests.parsing_limits import ParsingLimits
    from receiver_runtime.receivers.http.requests.pushed import Headers
    from receiver_runtime.receivers.http.requests.records import Plain

_STANDARD = "Idempotency-Key"
_INDEX = re.compile(r"0|[1-9]\d{0,9}")
_MOST_FIELDS = 1000  # of a form: no sender has more
_LONGEST = 100  # characters of what is no key in a refusal
_CHECK_EVERY = 1024  # how many records to look into before the time is checked again
_KEY = msgspec.json.Decoder(int | str)
_ELEMENTS = msgspec.json.Decoder(list[msgspec.Raw])


def key_header(key_from: str | None) -> str:
    """Return the name of the header that holds a request's key; empty if its body holds it."""
    if key_from is None:
        return _STANDARD
    return key_from.removeprefix(IN_HEADER) if key_from.startswith(IN_HEADER) else ""


def key_of(given: str | None, name: str = _STANDARD) -> str | None:
    """Return the request's key; None: it has none.

    Raises:
        RefusedError: 400, it is no key.
    """
    if given is None:
        return None
    key = idempotency_key(given)
    if key is None:
        raise _no_key(given, name)
    return key


def _key_in_body(given: str, name: str) -> str:
    """Return a key as it is: quotes that a body's text has are part of it. Raises as ``key_of``."""
    if not is_key(given):
        raise _no_key(given, name)
    return given


def _no_key(given: str, name: str) -> RefusedError:
    return refusal(HTTPStatus.BAD_REQUEST, f"{name}: {shortened(repr(given), _LONGEST)} is no key: send {WANTED}")


class BodyKey:
    """Find the key in a text of JSON by a pointer (RFC 6901), and build nothing else of the text."""

    def __init__(self, pointer: str) -> None:
        self._pointer = pointer
        names = [name.replace("~1", "/").replace("~0", "~") for name in pointer.split("/")[1:]]
        self._steps = [_step(name) for name in names]

    def of(self, body: bytes, limits: ParsingLimits) -> str | None:
        """Return the key: a string, or a whole number; None if there is nothing of this kind.

        Raises:
            PushRefusedError: 413, the body has too many values.
            RefusedError: 400, it is no key.
        """
        limits.check_json(body)
        value = body
        try:
            for step in self._steps:
                value = step(value)
            found = _KEY.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, IndexError):
            return None
        return _key_in_body(str(found), f"body:{self._pointer}")


class FormKey:
    """Find the key in a form (``application/x-www-form-urlencoded``) by the name of its field."""

    def __init__(self, name: str) -> None:
        self._name = name

    def of(self, body: bytes, limits: ParsingLimits) -> str | None:
        """Return the key; None if the body is no form, or has no such field, or several.

        Raises:
            RefusedError: 400, it is no key.
        """
        del limits
        try:
            fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=_MOST_FIELDS, errors="strict")
        except ValueError:
            return None
        values = fields.get(self._name, ())
        return _key_in_body(values[0], f"form:{self._name}") if len(values) == 1 else None


def keyed(plain: Plain, place: BodyKey | FormKey, headers: Headers, body: bytes, limits: ParsingLimits) -> Plain:
    """Return a body's records with its key. Where the body as a whole has none, each record may have its own.

    A record whose key is none, or that has another one's key and other content, is rejected, and refuses no other. One
    that is there again is returned once.

    Raises:
        ParsingStoppedError: the time is over, or the sender has left.
        PushRefusedError: 400, no record is left; 413, the body has too many values.
        RefusedError: 400, the body's key is none.
    """
    _, charset = media_type(header(headers, b"content-type"))
    key = place.of(looked_at(charset, body), limits)
    if key is not None:
        return replace(plain, key=key)
    return plain if isinstance(place, FormKey) else _keyed_records(plain, place, limits)


def _keyed_records(plain: Plain, place: BodyKey, limits: ParsingLimits) -> Plain:
    records = plain.bodies.to_pylist() if isinstance(plain.bodies, pa.Array) else plain.bodies
    bodies: list[bytes] = []
    keys: list[str | None] = []
    rejected: list[RejectedRecord] = []
    first: dict[str, bytes] = {}
    for number, record in enumerate(records, start=1):
        if not number % _CHECK_EVERY:
            limits.check()
        try:
            key = place.of(record, limits)
        except RefusedError as error:
            rejected.append(RejectedRecord(record, DeadLetterReason.UNPARSABLE, f"record {number}: {error}"))
            continue
        if key is None or (same := first.setdefault(key, record)) is record:
            bodies.append(record)
            keys.append(key)
        elif same != record:
            why = f"record {number}: another one has its key, {key!r}, and other content"
            rejected.append(RejectedRecord(record, DeadLetterReason.REPEATED_KEY, why))
    if not first and not rejected:
        return plain
    if not bodies or len(rejected) > MOST_REJECTED:
        raise PushRefusedError(400, f"{rejected[0].why}: correct it, none of them is kept")
    return replace(plain, bodies=bodies, keys=keys if first else None, rejected=[*plain.rejected, *rejected])


def _step(name: str) -> Callable[[bytes], bytes]:
    """Return what finds one member, or element, in a JSON text. It raises where there is none."""
    members = msgspec.json.Decoder(
        msgspec.defstruct("Member", [("value", msgspec.Raw)], rename={"value": name}, gc=False)
    )

    def member(text: bytes) -> bytes:
        return bytes(msgspec.structs.astuple(members.decode(text))[0])

    def member_or_element(text: bytes) -> bytes:
        if text.lstrip()[:1] == b"[":
            return bytes(_ELEMENTS.decode(text)[int(name)])
        return member(text)

    return member_or_element if _INDEX.fullmatch(name) else member
