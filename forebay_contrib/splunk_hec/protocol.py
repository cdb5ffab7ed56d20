"""Register Splunk's HTTP Event Collector as a protocol: its paths, and the answers that its senders know."""

from __future__ import annotations

import itertools
import json
import time
from http import HTTPStatus
from typing import TYPE_CHECKING

import msgspec

from forebay_contrib.splunk_hec.events import BLANK_EVENT, NO_DATA, NO_EVENT, parse_events, parse_raw
from receiver_runtime.receivers.http.requests.protocol import HttpProtocol
from receiver_runtime.receivers.http.requests.pushed import PushRefusedError
from receiver_runtime.receivers.http.requests.route import Described, Reply, Route
from receiver_runtime.receivers.http.rows import parameters

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from receiver_runtime.receivers.http.declaration import Http
    from receiver_runtime.receivers.http.requests.parsing_limits import ParsingLimits
    from receiver_runtime.receivers.http.requests.pushed import Headers
    from receiver_runtime.receivers.http.requests.route import Answered, Json, Refused

_COLLECTOR = "/services/collector"
_JSON = "application/json"
_CHANNEL = b"x-splunk-request-channel"
_NO_CHANNEL = "Data channel is missing"
_SUCCESS = b'{"text":"Success","code":0}'
_BUSY = (503, 9, "Server is busy")
#: The status, code and text of a refusal, by the status that it has elsewhere. Senders repeat no request that is
#: answered with a status below 500, so what passes by itself has one above.
_REFUSALS: Mapping[int, tuple[int, int, str]] = {
    401: (401, 2, "Token is required"),
    408: _BUSY,
    413: (413, 27, "Request entity too large"),
    422: (400, 6, "Invalid data format"),
    429: _BUSY,
    500: (500, 8, "Internal server error"),
    503: _BUSY,
}
_OTHER = (6, "Invalid data format")
#: The code of an answer whose reason has one of these texts.
_CODES: Mapping[str, int] = {NO_DATA: 5, _NO_CHANNEL: 10, NO_EVENT: 12, BLANK_EVENT: 13}
_QUESTION = Described({})
_SCHEMAS: dict[str, Json] = {
    "SplunkAnswer": {
        "type": "object",
        "required": ["text", "code"],
        "properties": {"text": {"type": "string"}, "code": {"type": "integer"}, "ackId": {"type": "integer"}},
    },
}
_ANSWER: Mapping[str, Json] = {_JSON: {"$ref": "#/components/schemas/SplunkAnswer"}}


class _Asked(msgspec.Struct):
    """Hold the ids that a sender asks for."""

    acks: list[int]


_ASKED = msgspec.json.Decoder(_Asked)


class SplunkHec(HttpProtocol):
    """Takes events at ``/services/collector/event``, and lines at ``/services/collector/raw``."""

    def __init__(self) -> None:
        # Ids of acknowledgements need only differ from those that a sender still asks for. They are no state: one is
        # given for records that are registered, so it is true whenever it is asked for, also after a restart.
        self._acks = itertools.count(time.time_ns() // 1000)

    def routes(self) -> Sequence[Route]:
        """See ``HttpProtocol``."""
        events = {"": "events", "/event": "eventsToo", "/event/1.0": "eventsOfVersion"}
        raw = {"/raw": "rawLines", "/raw/1.0": "rawLinesOfVersion"}
        health = {"/health", "/health/1.0"}
        return [
            *(
                Route(f"{_COLLECTOR}{end}", _is_any, parse_events, _events(name), self._answer, refuse)
                for end, name in events.items()
            ),
            *(
                Route(f"{_COLLECTOR}{end}", _is_any, parse_raw, _raw(name), self._answer, refuse)
                for end, name in raw.items()
            ),
            Route(f"{_COLLECTOR}/ack", _is_any, _answer_acks, _QUESTION, refuse=refuse),
            *(
                Route(
                    f"{_COLLECTOR}{end}",
                    _is_any,
                    _answer_acks,
                    _QUESTION,
                    refuse=refuse,
                    answer_get=_answer_health,
                    methods=(),
                )
                for end in sorted(health)
            ),
        ]

    def _answer(self, headers: Headers, answered: Answered) -> Reply:
        if answered.buffered:
            return Reply(HTTPStatus.ACCEPTED, _JSON, _SUCCESS)
        content = _SUCCESS
        if _channel(headers):
            content = _dumps({"text": "Success", "code": 0, "ackId": next(self._acks)})
        return Reply(HTTPStatus.OK, _JSON, content)


def _is_any(_: Headers) -> bool:
    return True


def _events(operation: str) -> Described:
    event: Json = {
        "type": "object",
        "required": ["event"],
        "properties": {
            "event": {"type": ["object", "string", "number", "boolean", "array"], "minLength": 1},
            "time": {"type": ["number", "string", "null"]},
            "fields": {"type": ["object", "null"]},
            **{name: {"type": ["string", "null"]} for name in ("host", "source", "sourcetype", "index")},
        },
    }
    return Described({_JSON: event}, _SCHEMAS, operation, "Splunk HEC: send events.", _ANSWER, _ANSWER)


def _raw(operation: str) -> Described:
    lines: Json = {"type": "string", "pattern": r"[^ \t\r\n]"}
    return Described({"text/plain": lines}, _SCHEMAS, operation, "Splunk HEC: send lines.", _ANSWER, _ANSWER)


def _channel(headers: Headers) -> bool:
    return any(name == _CHANNEL for name, _ in headers) or "channel" in parameters(headers)


def _answer_health(_: Headers, __: bytes, ___: Http) -> Reply:
    return Reply(HTTPStatus.OK, _JSON, b'{"text":"HEC is healthy","code":17}')


def _answer_acks(headers: Headers, body: bytes, _: Http, limits: ParsingLimits) -> Reply:
    """Answer which requests are registered: all that have an id."""
    if not _channel(headers):
        raise PushRefusedError(400, _NO_CHANNEL)
    limits.check_json(body)
    try:
        asked = _ASKED.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PushRefusedError(400, f'acks: {error}: send {{"acks": [1, 2]}}') from error
    return Reply(HTTPStatus.OK, _JSON, _dumps({"acks": {str(one): True for one in asked.acks}}))


def refuse(_: Headers, refused: Refused) -> Reply:
    """Answer a refused request as the Event Collector does."""
    status, code, text = _REFUSALS.get(refused.status, (refused.status, *_OTHER))
    if any("invalid_token" in value for _, value in refused.headers):
        status, code, text = HTTPStatus.FORBIDDEN, 4, "Invalid token"
    for found, its_code in _CODES.items():
        if found in refused.detail and status == HTTPStatus.BAD_REQUEST:
            code, text = its_code, found
    detail = "" if refused.detail == text else f": {refused.detail}"
    return Reply(status, _JSON, _dumps({"text": f"{text}{detail}", "code": code}), refused.headers)


def _dumps(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
