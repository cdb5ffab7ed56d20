"""CloudEvents 1.0 over HTTP: which requests are events, and what the OpenAPI document says of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from forebay_contrib.cloud_events.events import (
    BATCHED,
    STRUCTURED,
    is_cloud_event,
    parse_cloud_events,
)
from receiver_runtime.receivers.http.declaration import STREAM_PATH
from receiver_runtime.receivers.http.requests.protocol import HttpProtocol
from receiver_runtime.receivers.http.requests.route import BASE64_PATTERN, Described, Json, Route

if TYPE_CHECKING:
    from collections.abc import Sequence

    from receiver_runtime.receivers.http.declaration import Http
    from receiver_runtime.receivers.http.requests.parsing_limits import ParsingLimits
    from receiver_runtime.receivers.http.requests.pushed import Headers, Pushed

_ATTRIBUTE: Json = {"type": "string", "pattern": r"^[^\x00-\x1f\x7f-\x9f]+$"}
_EVENT: Json = {"$ref": "#/components/schemas/CloudEvent"}


def _nullable(schema: Json) -> Json:
    return {**schema, "type": [schema["type"], "null"]}


_SCHEMAS: dict[str, Json] = {
    "CloudEvent": {
        "description": "An event of CloudEvents 1.0 in the JSON format. `source` and `id` are its key.",
        "type": "object",
        "required": ["id", "source", "specversion", "type"],
        "properties": {
            "id": _ATTRIBUTE,
            "source": _ATTRIBUTE,
            "specversion": {"const": "1.0"},
            "type": _ATTRIBUTE,
            "datacontenttype": _nullable(_ATTRIBUTE),
            "dataschema": _nullable(_ATTRIBUTE),
            "subject": _nullable(_ATTRIBUTE),
            "time": _nullable({"type": "string", "format": "date-time"}),
            "data": {"description": "Of any type. Text that is no JSON, by datacontenttype, is a string."},
            "data_base64": _nullable({"type": "string", "contentEncoding": "base64", "pattern": BASE64_PATTERN}),
        },
        "propertyNames": {"pattern": "^([a-z0-9]+|data_base64)$"},
        "additionalProperties": {
            "type": ["string", "integer", "boolean", "null"],
            "pattern": r"^[^\x00-\x1f\x7f-\x9f]*$",
        },
        # Null is as if it were absent.
        "not": {"required": ["data", "data_base64"], "properties": {"data_base64": {"type": "string"}}},
    },
}
_DESCRIBED = Described({STRUCTURED: _EVENT, BATCHED: {"type": "array", "items": _EVENT}}, _SCHEMAS)


class CloudEvents(HttpProtocol):
    """Takes events at the stream's own path, one or several in a request."""

    by_default: ClassVar[bool] = True

    def routes(self) -> Sequence[Route]:
        """See ``HttpProtocol``."""
        return [Route(STREAM_PATH, is_cloud_event, _parse, _DESCRIBED)]


def _parse(headers: Headers, body: bytes, source: Http, limits: ParsingLimits) -> Pushed:
    return parse_cloud_events(headers, body, most_bytes=source.max_record_bytes, limits=limits)
