"""Chooses a request's route by its path and headers: a table of parsers, and of how each kind's senders are answered.

To take another kind of request, write a parser: a function of a request's headers (names in lower case), its
decompressed body, the source, and the limits that it checks before it makes objects. It returns ``Pushed`` or
``Plain``, or raises ``PushRefusedError``. Let ``routes_of`` return a ``Route`` with it. The server does everything
else: authorization, limits, acknowledgement. Of a path's routes, the first one whose ``matches`` is true takes the
request; if none of a path without ``{stream}`` does, those of ``/v1/{stream}`` are tried.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from receiver_runtime.receivers.http.protocols.cloud_events import (
    BATCHED,
    STRUCTURED,
    is_cloud_event,
    parse_cloud_events,
)
from receiver_runtime.receivers.http.requests.records import Plain, lines_at_once, parse_plain
from receiver_runtime.receivers.http.requests.route import Route
from receiver_runtime.receivers.missing_client import missing_client

if TYPE_CHECKING:
    from collections.abc import Sequence

    from receiver_runtime.receivers.http.requests.parsing_limits import ParsingLimits
    from receiver_runtime.receivers.http.requests.pushed import Headers, Pushed
    from receiver_runtime.sources.declarations.http import Http

STREAM_PATH = "/v1/{stream}"
_PLAIN_TYPES = ("application/json", "application/x-ndjson", "text/plain", "application/octet-stream")


def _is_any(_: Headers) -> bool:
    return True


def _parse_plain(headers: Headers, body: bytes, source: Http, limits: ParsingLimits) -> Plain:
    return parse_plain(headers, body, most_bytes=source.max_record_bytes, form=source.body, limits=limits)


def _lines_at_once(headers: Headers, body: bytes, source: Http) -> Plain | None:
    return lines_at_once(headers, body, most_bytes=source.max_record_bytes, form=source.body)


def _parse_events(headers: Headers, body: bytes, source: Http, limits: ParsingLimits) -> Pushed:
    return parse_cloud_events(headers, body, most_bytes=source.max_record_bytes, limits=limits)


def routes_of(source: Http) -> Sequence[Route]:
    """Return the routes of a source's server.

    Raises:
        SourceError: a route needs an extra that is not installed here.
    """
    routes = [
        Route(STREAM_PATH, is_cloud_event, _parse_events, media_types=(STRUCTURED, BATCHED)),
        Route(STREAM_PATH, _is_any, _parse_plain, media_types=_PLAIN_TYPES, parse_at_once=_lines_at_once),
    ]
    return [_logs_route(), *routes] if source.opentelemetry else routes


def _logs_route() -> Route:
    try:
        from receiver_runtime.receivers.http.protocols.otlp_route import logs_route  # noqa: PLC0415  it loads an extra
    except ModuleNotFoundError as error:
        raise missing_client(
            error, "opentelemetry", "opentelemetry-proto", "otlp", "opentelemetry", "google"
        ) from error
    return logs_route()
