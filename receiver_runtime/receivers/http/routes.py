"""Choose the kinds of request that a source takes: plain bodies, and those of the protocols that packages register.

Of a path's routes, the first one whose ``matches`` is true takes the request; if none of a path without ``{stream}``
does, those of ``/v1/{stream}`` are tried. Plain bodies are taken last. No protocol is known here by its name.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from receiver_runtime.receivers.http.declaration import HTTP_PROTOCOLS, IN_BODY, IN_FORM, STREAM_PATH
from receiver_runtime.receivers.http.requests.idempotency_key import BodyKey, FormKey, keyed
from receiver_runtime.receivers.http.requests.protocol import HttpProtocol
from receiver_runtime.receivers.http.requests.pushed import header, media_type
from receiver_runtime.receivers.http.requests.records import Plain, lines_at_once, parse_plain
from receiver_runtime.receivers.http.requests.route import Described, Route
from receiver_runtime.receivers.http.requests.text_bodies import looked_at
from receiver_runtime.sources.plugins import PluginError, load, registered
from receiver_runtime.sources.source import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from receiver_runtime.receivers.http.declaration import Http
    from receiver_runtime.receivers.http.requests.parsing_limits import ParsingLimits
    from receiver_runtime.receivers.http.requests.pushed import Headers, Pushed, PushedRows
    from receiver_runtime.receivers.http.requests.route import Handshake, Parser, Reply

_PLAIN = Described(
    {
        "application/json": {
            "description": "One record, or an array of records.",
            "anyOf": [
                {"type": "array", "minItems": 1},
                {"type": ["object", "string", "number", "boolean", "null"]},
            ],
        },
        "application/x-ndjson": {"description": "A record of JSON a line.", "type": "string", "minLength": 1},
        "text/plain": {"description": "A record a line.", "type": "string", "pattern": r"[^ \t\r\n]"},
        "application/octet-stream": {
            "description": "One record.",
            "type": "string",
            "format": "binary",
            "minLength": 1,
        },
    }
)


def _is_any(_: Headers) -> bool:
    return True


def _parse_plain(headers: Headers, body: bytes, source: Http, limits: ParsingLimits) -> Plain:
    return parse_plain(headers, body, most_bytes=source.max_record_bytes, form=source.body, limits=limits)


def _parse_with_key(
    key: BodyKey | FormKey, headers: Headers, body: bytes, source: Http, limits: ParsingLimits
) -> Plain:
    return keyed(_parse_plain(headers, body, source, limits), key, headers, body, limits)


def _lines_at_once(headers: Headers, body: bytes, source: Http) -> Plain | None:
    return lines_at_once(headers, body, most_bytes=source.max_record_bytes, form=source.body)


def routes_of(source: Http) -> Sequence[Route]:
    """Return the routes of a source's server.

    Raises:
        SourceError: a protocol is not registered here, or needs an extra that is not installed.
    """
    protocols = [protocol() for protocol in _protocols_of(source)]
    of_protocols = [route for protocol in protocols for route in protocol.routes()]
    handshakes = [protocol.handshakes() for protocol in protocols]
    posts = [found["POST"] for found in handshakes if "POST" in found]
    gets = [found["GET"] for found in handshakes if "GET" in found]
    place = source.key_from or ""
    if place.startswith((IN_BODY, IN_FORM)):
        name = place[len(IN_BODY) :]
        key = BodyKey(name) if place.startswith(IN_BODY) else FormKey(name)
        plain = Route(STREAM_PATH, _is_any, partial(_parse_with_key, key), _PLAIN)
    else:
        plain = Route(STREAM_PATH, _is_any, _parse_plain, _PLAIN, parse_at_once=_lines_at_once)
    return [
        replace(
            route,
            parse=partial(_answer_or_parse, posts, route.parse) if posts else route.parse,
            answer_get=partial(_first_answer, gets) if gets else None,
        )
        if route.path == STREAM_PATH
        else route
        for route in (*of_protocols, plain)
    ]


def judge_letters(source: Http, reason: str, letters: Sequence[bytes]) -> Mapping[int, str]:
    """Return why one of the source's protocols refuses dead letters; see ``Source.refusals``. Raises SourceError."""
    return {
        place: why for protocol in _protocols_of(source) for place, why in protocol().refusals(reason, letters).items()
    }


def _first_answer(handshakes: Sequence[Handshake], headers: Headers, asked: bytes, source: Http) -> Reply | None:
    replies = (handshake(headers, asked, source) for handshake in handshakes)
    return next((reply for reply in replies if reply is not None), None)


def _answer_or_parse(
    handshakes: Sequence[Handshake], parse: Parser, headers: Headers, body: bytes, source: Http, limits: ParsingLimits
) -> Pushed | PushedRows | Plain | Reply:
    _, charset = media_type(header(headers, b"content-type"))
    reply = _first_answer(handshakes, headers, looked_at(charset, body), source)
    return parse(headers, body, source, limits) if reply is None else reply


def _protocols_of(source: Http) -> Iterator[type[HttpProtocol]]:
    known = list(registered(HTTP_PROTOCOLS))
    named = known if source.protocols is None else source.protocols
    of_senders = () if source.verify is None else source.verify.protocols
    for name in dict.fromkeys((*named, *of_senders)):
        if name not in known:
            raise SourceError(f"protocols: {name!r} is no protocol: use some of {', '.join(known)}")
        try:
            protocol: type[HttpProtocol] = load(HTTP_PROTOCOLS, name, HttpProtocol)  # type: ignore[type-abstract]
        except PluginError as error:
            raise SourceError(f"protocols: {error}") from error
        if protocol.by_default or source.protocols is not None or name in of_senders:
            yield protocol
