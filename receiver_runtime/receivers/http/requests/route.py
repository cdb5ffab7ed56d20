"""Defines a kind of request, and how its senders are answered: the types that the routes and the server share."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from receiver_runtime.receivers.http.requests.parsing_limits import ParsingLimits
from receiver_runtime.receivers.http.requests.pushed import Headers, Pushed, PushedRows
from receiver_runtime.receivers.http.requests.records import Plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from receiver_runtime.receivers.http.declaration import Http


@dataclass(frozen=True, slots=True)
class Answered:
    """Hold the outcome of a request that was taken.

    ``rejected`` counts its dead letters; ``why`` is the reason of the first one. ``misfits`` has why for those that
    were parsed, and did not fit the stream's columns, by their places among its rows.
    """

    records: int
    duplicates: int = 0
    rejected: int = 0
    why: str = ""
    buffered: bool = False
    misfits: Mapping[int, str] = field(default_factory=dict)
    #: Of a request of a channel: where the channel is now.
    position: int | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """Say why a request was not taken. ``retry_after`` is in seconds, and None where sending it again is of no use."""

    status: int
    detail: str
    retry_after: int | None = None
    headers: Sequence[tuple[str, str]] = field(default=())


@dataclass(frozen=True, slots=True)
class Reply:
    """Hold a response's status, media type, body and further headers."""

    status: int
    content_type: str
    body: bytes
    headers: Sequence[tuple[str, str]] = field(default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredRows(PushedRows):
    """Hold rows whose answer depends on more than their number, for a route with a path of its own.

    ``answer`` makes it in place of the route's; it is also called where no row fits the stream's columns.
    """

    answer: Callable[[Answered], Reply]


Parser = Callable[[Headers, bytes, "Http", ParsingLimits], Pushed | PushedRows | Plain | Reply]
#: Answers a sender that asks whether it may send here; None if a request is no such question. It takes the headers, and
#: the body of a POST or the query of a GET, and may refuse by ``PushRefusedError`` or ``RefusedError``.
Handshake = Callable[[Headers, bytes, "Http"], Reply | None]
QuickParser = Callable[[Headers, bytes, "Http"], Plain | None]


def answer_json(_: Headers, answered: Answered) -> Reply:
    """Answer with the counts, as a JSON object."""
    counts: dict[str, object] = {"records": answered.records, "duplicates": answered.duplicates}
    if answered.rejected:
        counts |= {"dead_letters": answered.rejected, "first_dead_letter": answered.why}
    status = HTTPStatus.ACCEPTED if answered.buffered else HTTPStatus.OK
    return Reply(status, "application/json", json.dumps(counts).encode())


def refuse_by_problem(_: Headers, refused: Refused) -> Reply:
    """Answer with a problem detail (RFC 9457)."""
    problem = {
        "type": "about:blank",
        "title": HTTPStatus(refused.status).phrase,
        "status": refused.status,
        "detail": refused.detail,
    }
    return Reply(refused.status, "application/problem+json", json.dumps(problem).encode(), refused.headers)


def with_retry(reply: Reply, refused: Refused) -> Reply:
    """Return the answer to a refused request, with the time after which to send it again, if that helps."""
    if refused.retry_after is None:
        return reply
    more = (*reply.headers, ("retry-after", str(refused.retry_after)))
    return Reply(reply.status, reply.content_type, reply.body, more)


def with_position(reply: Reply, answered: Answered) -> Reply:
    """Return the answer to a request that was taken, with its channel's position, if it is of a channel."""
    if answered.position is None:
        return reply
    more = (*reply.headers, ("forebay-offset", str(answered.position)))
    return Reply(reply.status, reply.content_type, reply.body, more)


#: A JSON schema, or another part of an OpenAPI document.
Json = dict[str, Any]

#: The pattern of a string that holds bytes in Base64.
BASE64_PATTERN = r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"


@dataclass(frozen=True, slots=True)
class Described:
    """Describe a route in the OpenAPI document (``description``), by JSON schemas; the parser decides what is taken.

    ``bodies`` are the request's, by media type. A route of the stream's own path says only them, and the ``schemas`` to
    which they refer. One with a path of its own also says the id and summary of its operation, the bodies of its
    answers, and the status of a request that is taken.
    """

    bodies: Mapping[str, Json]
    schemas: Mapping[str, Json] = field(default_factory=dict)
    operation: str = ""
    summary: str = ""
    taken: Mapping[str, Json] = field(default_factory=dict)
    refused: Mapping[str, Json] = field(default_factory=dict)
    status: int = 200


@dataclass(frozen=True, slots=True)
class Route:
    """One kind of request. ``refuse`` makes the answer to a refused request of this route.

    ``parse`` returns a reply for a request that is a question and holds no record. ``parse_at_once`` takes well under a
    millisecond for 256 KiB, and returns None where it can't say so soon what the body is. ``answer_get`` answers
    questions that are asked by GET, also without a token; with other ``methods``, all are parsed as POST is.
    A path that is not ``/v1/{stream}`` may have parameters in braces: its parser finds the request's path and query in
    the headers ``TARGET_PATH`` and ``TARGET_QUERY``.
    """

    path: str
    matches: Callable[[Headers], bool]
    parse: Parser
    described: Described
    answer: Callable[[Headers, Answered], Reply] = answer_json
    refuse: Callable[[Headers, Refused], Reply] = refuse_by_problem
    parse_at_once: QuickParser | None = None
    answer_get: Handshake | None = None
    methods: Sequence[str] = ("POST",)
