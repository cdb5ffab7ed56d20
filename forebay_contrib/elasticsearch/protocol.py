"""Register Elasticsearch's bulk requests as a protocol: its paths, and what the OpenAPI document says of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay_contrib.elasticsearch.answers import ASKED, NAMED, answer_asked, answer_named, answer_refused
from forebay_contrib.elasticsearch.bulk import parse_bulk
from receiver_runtime.receivers.http.requests.protocol import HttpProtocol
from receiver_runtime.receivers.http.requests.route import Described, Route

if TYPE_CHECKING:
    from collections.abc import Sequence

    from receiver_runtime.receivers.http.requests.pushed import Headers
    from receiver_runtime.receivers.http.requests.route import Json

_BULK_PATHS = {"/_bulk": "bulk", "/{index}/_bulk": "bulkOfIndex", "/{index}/{type}/_bulk": "bulkOfType"}
_QUESTION = Described({})
_SCHEMAS: dict[str, Json] = {
    "BulkAnswer": {
        "type": "object",
        "required": ["errors", "items"],
        "properties": {
            "took": {"type": "integer"},
            "errors": {"type": "boolean"},
            "items": {"type": "array", "items": {"type": "object", "minProperties": 1, "maxProperties": 1}},
        },
    },
    "ElasticsearchError": {
        "type": "object",
        "required": ["error", "status"],
        "properties": {
            "error": {"type": "object", "required": ["type", "reason"]},
            "status": {"type": "integer"},
        },
    },
}


def _described(operation: str) -> Described:
    return Described(
        {
            "application/x-ndjson": {
                "description": "By turns, an action and its document, a line of JSON each.",
                "type": "string",
                "minLength": 1,
            }
        },
        _SCHEMAS,
        operation,
        "Elasticsearch: store documents.",
        {"application/json": {"$ref": "#/components/schemas/BulkAnswer"}},
        {"application/json": {"$ref": "#/components/schemas/ElasticsearchError"}},
    )


class Elasticsearch(HttpProtocol):
    """Takes ``POST /_bulk`` and ``/INDEX/_bulk``, and answers what shippers ask before they send."""

    def routes(self) -> Sequence[Route]:
        """See ``HttpProtocol``."""
        bulk = [
            Route(path, _is_any, parse_bulk, _described(name), refuse=answer_refused, methods=("POST", "PUT"))
            for path, name in _BULK_PATHS.items()
        ]
        asked = [
            Route(path, _is_any, answer_asked, _QUESTION, refuse=answer_refused, methods=("GET", "HEAD"))
            for path in ASKED
        ]
        named = [
            Route(path, _is_any, answer_named, _QUESTION, refuse=answer_refused, methods=("GET", "HEAD", "PUT", "POST"))
            for path in NAMED
        ]
        return [*bulk, *asked, *named]


def _is_any(_: Headers) -> bool:
    return True
