"""CloudEvents 1.0 over HTTP: makes records of requests in binary, structured or batched mode.

An event's ``source`` and ``id`` together are its key: the specification says that no two events share them. Its data
are the record's body, byte for byte as they were sent. Its other attributes are the record's attributes; in every mode
they have the names of the binary mode's headers.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from http import HTTPStatus
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import unquote_to_bytes

from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.receivers.http.requests.json_spans import UnknownSpansError, array_elements
from receiver_runtime.receivers.http.requests.parsing_limits import UNLIMITED, ParsingLimits
from receiver_runtime.receivers.http.requests.pushed import (
    MOST_REJECTED,
    Pushed,
    PushedRecord,
    PushRefusedError,
    RejectedRecord,
    header,
    header_text,
    media_type,
)
from receiver_runtime.receivers.http.requests.text_bodies import in_utf8, json_in_utf8, json_text
from receiver_runtime.receivers.http.requests.web_hooks import FORBIDDEN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from receiver_runtime.receivers.http.requests.pushed import Headers

STRUCTURED = "application/cloudevents+json"
BATCHED = "application/cloudevents-batch+json"

_CHECK_EVERY = 256  # how many events of a batch to parse before the time is checked again
_PREFIX = b"ce-"
_REQUIRED = ("id", "source", "specversion", "type")
_REQUIRED_HEADERS = frozenset(_PREFIX + name.encode() for name in _REQUIRED)
_OPTIONAL = ("datacontenttype", "dataschema", "subject", "time")
# These attributes are strings in JSON, too; an extension may have another type.
_STRINGS = frozenset({*_REQUIRED, *_OPTIONAL})
_NAME = re.compile(r"[a-z0-9]+")
_TIME = re.compile(
    r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])[Tt]([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d+)?"
    r"([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)"
)
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_BLANK = re.compile(r"[ \t\n\r]*")
_JSON_TYPE = re.compile(r"[^/]+/(json|[^/]+\+json)")
_KINDS: Mapping[str, str] = {
    "bool": "a boolean",
    "dict": "an object",
    "list": "an array",
    "str": "a string",
    "NoneType": "null",
}


class _Number(str):
    """Hold a number of a JSON text as it is written there."""

    __slots__ = ()


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_int=_Number, parse_float=_Number, parse_constant=_refuse_constant)


def is_cloud_event(headers: Headers) -> bool:
    """Return whether a request declares events: by its media type, or by a header that every event has."""
    for name, value in headers:
        if name in _REQUIRED_HEADERS or (
            name == b"content-type" and value.strip().lower().startswith(b"application/cloudevents")
        ):
            return True
    return False


def parse_cloud_events(headers: Headers, body: bytes, *, most_bytes: int, limits: ParsingLimits = UNLIMITED) -> Pushed:
    """Return the events of a request for which ``is_cloud_event`` is true.

    An event that is twice in a batch is returned once. One with the key of another, and other content, is rejected.

    Args:
        headers: the request's headers.
        body: the request's body, decompressed.
        most_bytes: the limit of one event's data.
        limits: how many values a JSON body may have, and until when it may be parsed.

    Raises:
        ParsingStoppedError: the time is over, or the sender has left.
        PushRefusedError: 400 for an invalid event, 413 for data that are too large, 415 for a format that is not JSON.
    """
    content_type = header(headers, b"content-type")
    kind, charset = media_type(content_type)
    rejected: Sequence[RejectedRecord] = []
    if kind.startswith("application/cloudevents"):
        events, rejected = _from_json(kind, charset, body, most_bytes, limits)
    else:
        event = _binary(headers, content_type, body)
        _check_size(event, most_bytes)
        events = [event]
    return Pushed(events, rejected)


def _check_size(event: PushedRecord, most_bytes: int) -> None:
    size = len(event.body or b"")
    if size > most_bytes:
        raise PushRefusedError(
            413, f"the event {event.id!r:.100} has {size} bytes of data: max_record_bytes is {most_bytes}"
        )


def _from_json(
    kind: str, charset: str | None, body: bytes, most_bytes: int, limits: ParsingLimits
) -> tuple[Sequence[PushedRecord], Sequence[RejectedRecord]]:
    if kind not in {STRUCTURED, BATCHED}:
        raise PushRefusedError(
            415, f"the format {kind} is not read here: send {STRUCTURED}, {BATCHED}, or the attributes as ce- headers"
        )
    if kind == BATCHED:
        text = json_text(kind, charset, body)
        events, rejected = _batched(text.body, most_bytes, limits)
        return events, text.as_sent(rejected)
    body = json_in_utf8(kind, charset, body)
    limits.check_json(body)
    event = _structured(body, "")
    _check_size(event, most_bytes)
    return [event], []


def _binary(headers: Headers, content_type: str | None, body: bytes) -> PushedRecord:
    attributes: dict[str, str] = {}
    for name, value in headers:
        if not name.startswith(_PREFIX):
            continue
        attribute = name[len(_PREFIX) :].decode("latin-1")
        if attribute in attributes:
            raise PushRefusedError(400, f"the header ce-{attribute} came twice: send it once")
        if attribute == "datacontenttype":
            raise PushRefusedError(400, "the header ce-datacontenttype is not allowed: Content-Type is that attribute")
        attributes[attribute] = _header_value(attribute, value)
    if content_type:
        # A tab between the parts of a media type is a blank in HTTP.
        _check_value("datacontenttype", content_type.replace("\t", " "), "")
    return _event(attributes, content_type, body if body or content_type is not None else None, "")


def _header_value(attribute: str, value: bytes) -> str:
    """Decode a header's value as the HTTP binding says: first remove quotes, then percent-decode once."""
    text = header_text(value.strip())
    value = text.encode()
    try:
        if match := _QUOTED.fullmatch(text):
            value = re.sub(r"\\(.)", r"\1", match[1], flags=re.DOTALL).encode()
        return unquote_to_bytes(value).decode()
    except UnicodeDecodeError as error:
        raise PushRefusedError(
            400, f"the header ce-{attribute} is no UTF-8: percent-encode the UTF-8 of what is not ASCII"
        ) from error


def _structured(body: bytes, where: str) -> PushedRecord:
    try:
        text = body.decode()
        event, end = _json_event(text, _after_blank(text, 0), where)
        _expect_end(text, end)
    except UnicodeDecodeError as error:
        raise PushRefusedError(400, f"{where}no UTF-8 from byte {error.start} on: send JSON in UTF-8") from error
    except RecursionError as error:
        raise PushRefusedError(400, f"{where}the JSON is nested too deeply: make it flatter") from error
    except PushRefusedError:
        raise
    except ValueError as error:
        raise PushRefusedError(400, f"{where}no JSON ({error}): correct it") from error
    return event


def _batched(body: bytes, most_bytes: int, limits: ParsingLimits) -> tuple[list[PushedRecord], list[RejectedRecord]]:
    """Return the events of a batch, and those that are none: each of these is kept aside, and refuses no other."""
    if body.lstrip()[:1] != b"[":
        raise PushRefusedError(400, f"a body of {BATCHED} is a JSON array of events: send [...]")
    try:
        elements, _ = array_elements(body, limits)
    except UnknownSpansError as error:
        raise PushRefusedError(400, f"the body is no JSON ({error}): correct it") from error
    first: dict[str | None, PushedRecord] = {}
    rejected: list[RejectedRecord] = []
    for number, element in enumerate(elements):
        if not number % _CHECK_EVERY:
            limits.check()
        where = f"event {number} of the batch: "
        try:
            limits.check_json(element)
            event = _structured(element, where)
            _check_size(event, most_bytes)
            if first.setdefault(event.key, event) == event:
                continue
            why = (
                f"{where}another event has its source and its id, {event.id!r:.100}, and other content: give it its own"
            )
            rejected.append(RejectedRecord(element, DeadLetterReason.REPEATED_KEY, why))
        except PushRefusedError as error:
            too_large = error.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
            reason = DeadLetterReason.RECORD_TOO_LARGE if too_large else DeadLetterReason.UNPARSABLE
            rejected.append(RejectedRecord(element, reason, str(error)))
            if len(rejected) > MOST_REJECTED:
                raise
    if rejected and not first:
        status = 413 if all(one.reason is DeadLetterReason.RECORD_TOO_LARGE for one in rejected) else 400
        raise PushRefusedError(status, f"body: none of {len(rejected)} is an event; {rejected[0].why}")
    return list(first.values()), rejected


def _json_event(text: str, at: int, where: str) -> tuple[PushedRecord, int]:
    if text[at : at + 1] != "{":
        raise PushRefusedError(400, f"{where}an event is a JSON object: send {{...}}")
    members, end = _members(text, at, where)
    data = members.pop("data", None)
    encoded = members.pop("data_base64", None)
    # Null is a member that is absent, wherever another one may be there in its place.
    if encoded is not None and encoded[0] is None:
        encoded = None
    if encoded is not None and data is not None and data[0] is None:
        data = None
    attributes = {
        name: _json_attribute(name, value, where) for name, (value, _) in members.items() if value is not None
    }
    content_type = attributes.pop("datacontenttype", None)
    if content_type is not None:
        _check_value("datacontenttype", content_type, where)
    if data is not None and encoded is not None:
        raise PushRefusedError(400, f"{where}there are both data and data_base64: send one of them")
    body: bytes | None = None
    if encoded is not None:
        body = _from_base64(encoded[0], where)
    elif data is not None:
        value, raw = data
        is_json = content_type is None or _JSON_TYPE.fullmatch(media_type(content_type)[0]) is not None
        try:
            body = (
                value if isinstance(value, str) and not isinstance(value, _Number) and not is_json else raw
            ).encode()
        except UnicodeEncodeError as error:
            raise PushRefusedError(400, f"{where}data has half of a surrogate pair: send whole characters") from error
        content_type = in_utf8(content_type) or "application/json"
    return _event(attributes, content_type, body, where), end


def _members(text: str, at: int, where: str) -> tuple[dict[str, tuple[object, str]], int]:
    """Return the members of the object at ``at``, each as its value and its text, and where the object ends."""
    members: dict[str, tuple[object, str]] = {}
    at = _after_blank(text, at + 1)
    if text[at : at + 1] == "}":
        return members, at + 1
    while True:
        name, end = _DECODER.raw_decode(text, at)
        if text[at] != '"':
            raise json.JSONDecodeError("Expecting a name in double quotes", text, at)
        at = _after_blank(text, end)
        _expect(text, at, ":")
        at = _after_blank(text, at + 1)
        value, end = _DECODER.raw_decode(text, at)
        if name in members:
            raise PushRefusedError(400, f"{where}{name!r} is there twice: send it once")
        members[name] = value, text[at:end]
        at = _after_blank(text, end)
        if text[at : at + 1] == "}":
            return members, at + 1
        _expect(text, at, ",")
        at = _after_blank(text, at + 1)


def _json_attribute(name: str, value: object, where: str) -> str:
    if name in _STRINGS and (not isinstance(value, str) or isinstance(value, _Number)):
        kind = "a number" if isinstance(value, _Number) else _KINDS[type(value).__name__]
        raise PushRefusedError(400, f"{where}the attribute {name} is {kind}: send a string")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, _Number) and not re.fullmatch(r"-?\d+", value):
        raise PushRefusedError(
            400, f"{where}the attribute {name!r} is {value}: a number is an integer, or send a string"
        )
    if isinstance(value, str):
        return str(value)
    raise PushRefusedError(
        400, f"{where}the attribute {name!r} is {_KINDS[type(value).__name__]}: send a string, an integer or a boolean"
    )


def _from_base64(value: object, where: str) -> bytes:
    try:
        if isinstance(value, str) and not isinstance(value, _Number):
            return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        pass
    raise PushRefusedError(400, f"{where}data_base64 is no Base64: send a string of it, with its padding")


def _event(attributes: dict[str, str], content_type: str | None, body: bytes | None, where: str) -> PushedRecord:
    for name in _REQUIRED:
        if not attributes.get(name):
            raise PushRefusedError(400, f"{where}the attribute {name} is missing or empty: every event has one")
    if attributes["specversion"] != "1.0":
        raise PushRefusedError(
            400, f"{where}the attribute specversion is {attributes['specversion']!r}: events of 1.0 are read here"
        )
    for name, value in attributes.items():
        if not _NAME.fullmatch(name):
            raise PushRefusedError(
                400, f"{where}{name!r} is no attribute's name: they are of lower-case letters and digits"
            )
        if name == "data":
            raise PushRefusedError(400, f"{where}no attribute is called data: data are the body")
        _check_value(name, value, where)
    if "time" in attributes and not _TIME.fullmatch(attributes["time"]):
        raise PushRefusedError(
            400, f"{where}the attribute time is {attributes['time']!r}: send RFC 3339, as 2026-01-31T12:00:00Z"
        )
    # No attribute contains a newline, so that no two pairs make the same key.
    key = f"{attributes['source']}\n{attributes['id']}"
    named = {f"ce-{name}": value for name, value in attributes.items()}
    return PushedRecord(body, content_type, key, attributes["id"], named)


def _check_value(name: str, value: str, where: str) -> None:
    if not value and name in _OPTIONAL:
        raise PushRefusedError(400, f"{where}the attribute {name} is empty: fill it, or leave it out")
    if FORBIDDEN.search(value):
        raise PushRefusedError(400, f"{where}the attribute {name} holds a control character: take it out")


def _after_blank(text: str, at: int) -> int:
    match = _BLANK.match(text, at)
    return at if match is None else match.end()


def _expect(text: str, at: int, character: str) -> None:
    if text[at : at + 1] != character:
        raise json.JSONDecodeError(f"Expecting {character!r}", text, at)


def _expect_end(text: str, at: int) -> None:
    at = _after_blank(text, at)
    if at != len(text):
        raise json.JSONDecodeError("Extra data", text, at)
