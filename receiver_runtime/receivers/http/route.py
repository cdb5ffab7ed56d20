"""One kind of request, and how its senders are answered: what the routes and the server both know."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING

from receiver_runtime.receivers.http.pushed import Headers, Pushed
from receiver_runtime.receivers.http.records import Plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from receiver_runtime.sources.http import Http


@dataclass(frozen=True, slots=True)
class Answered:
    """What became of a request that was taken. ``rejected`` went aside as dead letters; ``why`` is the first's."""

    records: int
    duplicates: int = 0
    rejected: int = 0
    why: str = ""
    buffered: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a request was not taken. ``retry_after`` in seconds, where sending it again is of use."""

    status: int
    detail: str
    retry_after: int | None = None
    headers: Sequence[tuple[str, str]] = field(default=())


@dataclass(frozen=True, slots=True)
class Reply:
    """A response's status, media type, body and further headers."""

    status: int
    content_type: str
    body: bytes
    headers: Sequence[tuple[str, str]] = field(default=())


Parser = Callable[[Headers, bytes, "Http"], Pushed | Plain]


def answer_json(_: Headers, answered: Answered) -> Reply:
    """Counts, as a JSON object."""
    counts: dict[str, object] = {"records": answered.records, "duplicates": answered.duplicates}
    if answered.rejected:
        counts |= {"dead_letters": answered.rejected, "first_dead_letter": answered.why}
    status = HTTPStatus.ACCEPTED if answered.buffered else HTTPStatus.OK
    return Reply(status, "application/json", json.dumps(counts).encode())


def refuse_by_problem(_: Headers, refused: Refused) -> Reply:
    """A problem detail (RFC 9457)."""
    problem = {
        "type": "about:blank",
        "title": HTTPStatus(refused.status).phrase,
        "status": refused.status,
        "detail": refused.detail,
    }
    return Reply(refused.status, "application/problem+json", json.dumps(problem).encode(), refused.headers)


@dataclass(frozen=True, slots=True)
class Route:
    """One kind of request. ``refuse`` answers what this route's own senders are refused with.

    ``media_types`` are those that its description names (``description``); what is taken is the parser's to say.
    """

    path: str
    matches: Callable[[Headers], bool]
    parse: Parser
    answer: Callable[[Headers, Answered], Reply] = answer_json
    refuse: Callable[[Headers, Refused], Reply] = refuse_by_problem
    media_types: Sequence[str] = ()
