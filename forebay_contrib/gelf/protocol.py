"""Register GELF over HTTP as a protocol: its path, its messages, and the answers that its senders know."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

import msgspec

from forebay_contrib.gelf.messages import BLANKS, NoMessageError, errors_in, is_compressed, judge_letters
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.receivers.http.requests.decompression import decompressed
from receiver_runtime.receivers.http.requests.protocol import HttpProtocol
from receiver_runtime.receivers.http.requests.pushed import (
    MOST_REJECTED,
    PushedRows,
    PushRefusedError,
    RejectedRecord,
    header,
    media_type,
)
from receiver_runtime.receivers.http.requests.route import Described, Reply, Route
from receiver_runtime.receivers.http.requests.text_bodies import json_text
from receiver_runtime.receivers.http.rows import Rows
from tracker_store.long_texts import shortened

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from receiver_runtime.receivers.http.declaration import Http
    from receiver_runtime.receivers.http.requests.parsing_limits import ParsingLimits
    from receiver_runtime.receivers.http.requests.pushed import Headers
    from receiver_runtime.receivers.http.requests.route import Answered, Json, Refused

_PATH = "/gelf"
_JSON = "application/json"
_TEXT = "text/plain; charset=utf-8"
_ANY_VALUE = msgspec.json.Decoder(msgspec.Raw)  # it makes no objects
_AT_ONCE = 1024  # how many messages to judge before the time is checked again
_LONGEST_REASON = 300  # characters of what is said of one message
_NOT_BLANK: Json = {"type": "string", "pattern": r"[A-Za-z0-9]"}
_SCHEMAS: dict[str, Json] = {
    "GelfMessage": {
        "description": "A message of GELF 1.1. Members whose names begin with _ are the sender's own.",
        "type": "object",
        "properties": {
            "version": {"type": "string"},
            "host": _NOT_BLANK,
            "short_message": {"type": "string"},
            "full_message": {"type": "string"},
            "timestamp": {"type": "number"},
            "level": {"type": "integer"},
            "message": {"type": "string"},
        },
        "anyOf": [
            {"required": ["short_message"], "properties": {"short_message": _NOT_BLANK}},
            {"required": ["message"], "properties": {"message": _NOT_BLANK}},
        ],
    },
}
_DESCRIBED = Described(
    {_JSON: {"$ref": "#/components/schemas/GelfMessage"}},
    _SCHEMAS,
    "sendGelfMessage",
    "GELF: send a message, or several, one a line.",
    {},
    {"text/plain": {"type": "string"}},
)


class GelfHttp(HttpProtocol):
    """Takes messages at ``/gelf``."""

    def routes(self) -> Sequence[Route]:
        """See ``HttpProtocol``."""
        return [Route(_PATH, _is_any, parse_messages, _DESCRIBED, _answer, _refuse)]

    def refusals(self, reason: str, letters: Sequence[bytes]) -> Mapping[int, str]:
        """See ``HttpProtocol``."""
        return judge_letters(self, reason, letters)


def parse_messages(headers: Headers, body: bytes, source: Http, limits: ParsingLimits) -> PushedRows:
    """Return a row for each message: the body is one, or has one a line.

    Raises:
        ParsingStoppedError: the time is over, or the sender has left.
        PushRefusedError: 400, none is a message; 413, there are too many, or they are too large; 415 for an unknown
            charset.
    """
    if is_compressed(body) and header(headers, b"content-encoding") is None:
        # By any transport, GELF's messages may say by their first bytes alone that they are compressed.
        body = decompressed(
            body, "gzip" if body[:1] == b"\x1f" else "deflate", most_bytes=source.max_body_bytes, limits=limits
        )
    text = json_text(*media_type(header(headers, b"content-type")), body)
    limits.check_json(text.body)
    whole = text.body.strip(BLANKS)
    if not whole:
        raise PushRefusedError(400, "body: it is empty: send a message")
    texts = _texts_of(whole, limits)
    rows = Rows(headers, source)
    rejected: list[RejectedRecord] = []
    shared = rows.add_shared({})
    for number, (one, error) in enumerate(_judged(texts, source.max_record_bytes, limits)):
        if error is None:
            rows.add(one, shared)
            continue
        rejected.append(RejectedRecord(one, error.reason, shortened(f"message {number}: {error}", _LONGEST_REASON)))
        if len(rejected) > MOST_REJECTED:
            raise PushRefusedError(400, f"body: more than {MOST_REJECTED} messages are none; {rejected[0].why}")
    if not rows.bodies:
        is_large = all(one.reason is DeadLetterReason.RECORD_TOO_LARGE for one in rejected)
        raise PushRefusedError(413 if is_large else 400, f"{rejected[0].why}; nothing of it is kept: correct it")
    return PushedRows(rows.batch(_JSON), rejected=text.as_sent(rejected))


def _texts_of(whole: bytes, limits: ParsingLimits) -> Sequence[bytes]:
    """Return a body that is one value as it is, and the lines of any other."""
    if b"\n" not in whole or _is_one_value(whole):
        return [whole]
    limits.check_lines(whole)
    return [line for line in map(_stripped, whole.split(b"\n")) if line]


def _is_one_value(text: bytes) -> bool:
    try:
        _ANY_VALUE.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _judged(
    texts: Sequence[bytes], most_bytes: int, limits: ParsingLimits
) -> Iterator[tuple[bytes, NoMessageError | None]]:
    for first in range(0, len(texts), _AT_ONCE):
        limits.check()
        some = texts[first : first + _AT_ONCE]
        errors = errors_in(some)
        for place, text in enumerate(some):
            if len(text) > most_bytes:
                why = f"{len(text)} bytes, max_record_bytes is {most_bytes}"
                yield text, NoMessageError(DeadLetterReason.RECORD_TOO_LARGE, why)
            else:
                yield text, errors.get(place)


def _stripped(line: bytes) -> bytes:
    return line.strip(BLANKS)


def _is_any(_: Headers) -> bool:
    return True


def _answer(_: Headers, __: Answered) -> Reply:
    # Graylog's answer. Many senders take it alone for success.
    return Reply(HTTPStatus.ACCEPTED, _TEXT, b"")


def _refuse(_: Headers, refused: Refused) -> Reply:
    return Reply(refused.status, _TEXT, f"{refused.detail}\n".encode(), refused.headers)
