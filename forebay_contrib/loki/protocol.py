"""Register Loki's push requests as a protocol: its paths, and the answers that its senders know."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from receiver_runtime.receivers.http.requests.protocol import HttpProtocol
from receiver_runtime.receivers.http.requests.route import Described, Reply, Route

if TYPE_CHECKING:
    from collections.abc import Sequence

    from receiver_runtime.receivers.http.requests.pushed import Headers
    from receiver_runtime.receivers.http.requests.route import Answered, Json, Refused

_PATHS = {"/loki/api/v1/push": "pushLogs", "/api/prom/push": "pushLogsOfOlderSenders"}
_TEXT = "text/plain; charset=utf-8"
_LABELS: Json = {"type": "object", "additionalProperties": {"type": "string"}}
_SCHEMAS: dict[str, Json] = {
    "LokiPush": {
        "type": "object",
        "required": ["streams"],
        "properties": {
            "streams": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["stream", "values"],
                    "properties": {
                        "stream": _LABELS,
                        "values": {
                            "type": "array",
                            "items": {
                                "type": "array",
                                "description": "The time in nanoseconds, the line, and structured metadata.",
                                "prefixItems": [
                                    {"type": "string", "pattern": "^[0-9]{1,19}$"},
                                    {"type": "string"},
                                    _LABELS,
                                ],
                                "minItems": 2,
                                "maxItems": 3,
                            },
                        },
                    },
                },
            }
        },
    }
}


def _described(operation: str) -> Described:
    return Described(
        {
            "application/json": {"$ref": "#/components/schemas/LokiPush"},
            "application/x-protobuf": {"type": "string", "format": "binary"},
        },
        _SCHEMAS,
        operation,
        "Loki: push log lines.",
        {},
        {"text/plain": {"type": "string"}},
        HTTPStatus.NO_CONTENT,
    )


class Loki(HttpProtocol):
    """Takes log lines at ``/loki/api/v1/push``."""

    def routes(self) -> Sequence[Route]:
        """See ``HttpProtocol``."""
        from forebay_contrib.loki.push import parse_push  # noqa: PLC0415  it loads protobuf

        return [
            Route(path, _is_any, parse_push, _described(operation), _answer, _refuse)
            for path, operation in _PATHS.items()
        ]


def _is_any(_: Headers) -> bool:
    return True


def _answer(_: Headers, answered: Answered) -> Reply:
    # Senders take 204 alone for success.
    return Reply(HTTPStatus.ACCEPTED if answered.buffered else HTTPStatus.NO_CONTENT, _TEXT, b"")


def _refuse(_: Headers, refused: Refused) -> Reply:
    return Reply(refused.status, _TEXT, f"{refused.detail}\n".encode(), refused.headers)
