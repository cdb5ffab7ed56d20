"""Makes the OpenAPI 3.1 document of a receiver's server from its source and its routes.

A fuzzer in the tests checks that a running server behaves as the document says of media types, limits and answers.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING

from receiver_runtime.receivers.http.channels.channel import NAME_PATTERN
from receiver_runtime.receivers.http.declaration import STREAM_PATH
from receiver_runtime.receivers.http.record_schema import record_schema
from receiver_runtime.receivers.http.requests.idempotency_key import key_header
from receiver_runtime.sources.fields.hmac_signature import Hmac

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from receiver_runtime.receivers.http.declaration import Http
    from receiver_runtime.receivers.http.requests.route import Json, Route
    from receiver_runtime.sources.records.declared import Records

PATH = "/openapi.json"

_PARAMETER = re.compile(r"\{(\w+)\}")
_KEY = r"^[\x21-\x7e]([\x20-\x7e]{0,253}[\x21-\x7e])?$"

#: The statuses of refusals, besides 401 and 403.
_REFUSALS: Mapping[int, str] = {
    400: "It can't be taken as it is: `detail` says what is wrong, and where.",
    408: "The body was not whole in time.",
    413: "The body, a record alone, or what many records keep of a large head is larger than the source takes.",
    415: "The media type, its charset or the Content-Encoding is not read here.",
    429: "Too much is not answered yet, or a rate limit is in force: send again after Retry-After.",
    503: "The receiver is stopping, or the driver log is unavailable: send again after Retry-After.",
}
_NONE_FITS = (
    "No record fits the stream's columns: `detail` has the reason of the first one, and where. They are kept as dead "
    "letters. Where some fit, the answer is 200, with the number of the others as `dead_letters`."
)
# What describes the records of a typed stream better than a route can, by media type.
_RECORDS: Mapping[str, Json] = {
    "application/json": {
        "description": "One record, or an array of records: those that fit are stored, whatever is beside them.",
        "anyOf": [
            {"$ref": "#/components/schemas/Record"},
            {"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/Record"}},
        ],
    },
    "application/x-ndjson": {"description": "A `Record` a line.", "type": "string", "minLength": 1},
}
_RETRYABLE = frozenset({429, 503})


_POSITION = "The offset of the channel's next record: all before it are stored."
_OFFSET: Json = {"type": "string", "pattern": "^[0-9]{1,19}$"}
_OFFSET_HEADER: Json = {"description": _POSITION, "schema": _OFFSET}
_ELSEWHERE: Json = {
    "description": "The records do not go on where their channel is: send the channel's records from there on.",
    "headers": {"Forebay-Offset": {"required": True, **_OFFSET_HEADER}},
}
_CHANNEL_PARAMETERS: Sequence[Json] = (
    {
        "name": "Forebay-Channel",
        "in": "header",
        "description": "The records go on a named sequence, of which no record is stored twice; with Forebay-Offset, "
        "and without a key.",
        "schema": {"type": "string", "pattern": f"^{NAME_PATTERN}$"},
    },
    {
        "name": "Forebay-Offset",
        "in": "header",
        "description": "The offset of the first record in its channel; with Forebay-Channel.",
        "schema": {"type": "string", "pattern": "^[0-9]{1,18}$"},
    },
)

_SCHEMAS: Mapping[str, Json] = {
    "Channel": {
        "description": "Where a channel is.",
        "type": "object",
        "required": ["channel", "offset", "body"],
        "properties": {
            "channel": {"type": "string"},
            "offset": {"type": "integer", "minimum": 0},
            "body": {
                "enum": ["auto", "json", "json_lines", "lines", "whole"],
                "description": "How a body becomes records, as the source declares it.",
            },
        },
    },
    "Problem": {
        "description": "A problem detail (RFC 9457).",
        "type": "object",
        "required": ["type", "title", "status", "detail"],
        "properties": {
            "type": {"type": "string"},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string"},
        },
    },
    "Taken": {
        "description": "The outcome of a request's records.",
        "type": "object",
        "required": ["records", "duplicates"],
        "properties": {
            "records": {"type": "integer", "minimum": 0},
            "duplicates": {"type": "integer", "minimum": 0, "description": "Their key was known; not stored again."},
            "dead_letters": {
                "type": "integer",
                "minimum": 1,
                "description": "Put aside: no records, or they do not fit.",
            },
            "first_dead_letter": {"type": "string", "description": "Which one was the first, and why."},
        },
    },
    "State": {
        "type": "object",
        "required": ["status"],
        "properties": {"status": {"type": "string"}, "reason": {"type": "string"}},
    },
}


def describe(source: Http, stream: str, routes: Sequence[Route], records: Records | None = None) -> Json:
    """Return the document. ``stream`` is empty where the stream's name is not known; ``records`` are a typed one's."""
    paths: Json = {}
    schemas = dict(_SCHEMAS)
    if records is not None and records.is_json and not records.columns_grow:
        schemas["Record"] = record_schema(records)
    for route in routes:
        schemas |= route.described.schemas
        if route.path == STREAM_PATH:
            if _has_channels(source):
                paths[f"/v1/{stream or '{stream}'}/channels/{{name}}"] = _channel_path(source, stream)
            path = paths.setdefault(f"/v1/{stream}" if stream else route.path, _stream_path(source, stream, records))
            bodies = {**route.described.bodies, **(_RECORDS if "Record" in schemas else {})}
            path["post"]["requestBody"]["content"] |= _content(bodies)
        elif route.described.bodies:
            paths[route.path] = _own_path(source, route)
    paths["/health"] = {"get": _asked("Ask whether the server runs.", HTTPStatus.OK)}
    paths["/ready"] = {
        "get": _asked("Ask whether records are taken.", HTTPStatus.OK, HTTPStatus.SERVICE_UNAVAILABLE),
    }
    document: Json = {
        "openapi": "3.1.0",
        "info": {
            "title": f"Forebay: the stream {stream}" if stream else "Forebay",
            "version": "1",
            "description": "Takes records, and answers 200 when they are in a registered block. A body may be "
            "compressed: Content-Encoding is gzip or zstd.",
        },
        "paths": paths,
        "components": {"schemas": schemas},
    }
    if schemes := _schemes(source):
        document["components"]["securitySchemes"] = schemes
    return document


def _stream_path(source: Http, stream: str, records: Records | None) -> Json:
    problem = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    taken = {"application/json": {"schema": {"$ref": "#/components/schemas/Taken"}}}
    path: Json = {
        "post": {
            "operationId": "push",
            "summary": "Push records.",
            "description": "A CloudEvent may also come with its attributes as headers, and its data as the body.",
            "parameters": [
                {
                    "name": "ack",
                    "in": "query",
                    "description": "`buffered` answers 202 before anything is stored; a key can't be given, then.",
                    "schema": {"enum": ["registered", "buffered"], "default": "registered"},
                },
                *_key_parameter(source),
                *(_CHANNEL_PARAMETERS if _has_channels(source) else ()),
            ],
            "requestBody": {"required": True, "content": {}},
            "responses": {
                "200": {
                    "description": "The records are in a registered block.",
                    **({"headers": {"Forebay-Offset": _OFFSET_HEADER}} if _has_channels(source) else {}),
                    "content": taken,
                },
                "202": {"description": "With `ack=buffered`: the records will be stored.", "content": taken},
                **({"409": {**_ELSEWHERE, "content": problem}} if _has_channels(source) else {}),
                **_refusals(source, problem),
                **({"422": {"description": _NONE_FITS, "content": problem}} if records is not None else {}),
            },
            **_security(source),
        }
    }
    if not stream:
        path["parameters"] = [{"name": "stream", "in": "path", "required": True, "schema": {"type": "string"}}]
    if source.webhook_origins:
        path["options"] = {
            "operationId": "askForPermission",
            "summary": "Ask whether a web hook may send.",
            "parameters": [{"name": "WebHook-Request-Origin", "in": "header", "schema": {"type": "string"}}],
            "responses": {
                "200": {
                    "description": "It may if these headers are there.",
                    "headers": {
                        "Allow": {"schema": {"type": "string"}, "required": True},
                        "WebHook-Allowed-Origin": {"schema": {"type": "string"}},
                        "WebHook-Allowed-Rate": {"schema": {"const": "*"}},
                    },
                    "content": {"application/json": {"schema": {"type": "object"}}},
                },
                **{code: one for code, one in _refusals(source, problem).items() if code in {"400", "503"}},
            },
        }
    return path


def _has_channels(source: Http) -> bool:
    return source.key_from is None


def _channel_path(source: Http, stream: str) -> Json:
    problem = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    named = [{"name": "stream", "in": "path", "required": True, "schema": {"type": "string"}}] if not stream else []
    refusals = {code: one for code, one in _refusals(source, problem).items() if code in {"400", "401", "403", "503"}}
    return {
        "parameters": [
            *named,
            {
                "name": "name",
                "in": "path",
                "required": True,
                "schema": {"type": "string", "pattern": f"^{NAME_PATTERN}$"},
            },
        ],
        "get": {
            "operationId": "channelPosition",
            "summary": "Ask from which offset on a channel's records are to be sent.",
            "responses": {
                "200": {
                    "description": _POSITION,
                    "headers": {"Forebay-Offset": {"required": True, **_OFFSET_HEADER}},
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Channel"}}},
                },
                **refusals,
            },
            **_security(source),
        },
    }


def _key_parameter(source: Http) -> Sequence[Json]:
    name = key_header(source.key_from)
    said = "The same key within the stream's window is stored once."
    schema = {"type": "string", "pattern": _KEY, "not": {"const": '""'}}
    return [{"name": name, "in": "header", "description": said, "schema": schema}] if name else []


def _own_path(source: Http, route: Route) -> Json:
    described = route.described
    named = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(route.path)
    ]
    said: Json = {"parameters": named} if named else {}
    for method in route.methods:
        said[method.lower()] = {
            "operationId": described.operation if method == "POST" else f"{described.operation}By{method.title()}",
            "summary": described.summary,
            "requestBody": {"required": True, "content": _content(described.bodies)},
            "responses": {
                str(described.status): {
                    "description": "The records are in a registered block, except those that the answer names.",
                    **({"content": content} if (content := _content(described.taken)) else {}),
                },
                **_refusals(source, _content(described.refused)),
            },
            **_security(source),
        }
    return said


def _content(schemas: Mapping[str, Json]) -> Json:
    return {media_type: {"schema": schema} for media_type, schema in schemas.items()}


def _refusals(source: Http, content: Json) -> Json:
    refusals = {
        str(code): {
            "description": description,
            "content": content,
            **(
                {"headers": {"Retry-After": {"required": True, "schema": {"type": "string", "pattern": "^[0-9]+$"}}}}
                if code in _RETRYABLE
                else {}
            ),
        }
        for code, description in _REFUSALS.items()
    }
    if _schemes(source):
        refusals["401"] = {
            "description": "There is no token, or it is not one of the stream's; or no good signature.",
            "headers": {"WWW-Authenticate": {"required": True, "schema": {"type": "string"}}},
            "content": content,
        }
    if not source.tokens:
        refusals["403"] = {"description": "A web page of another site sends it: see Origin.", "content": content}
    return refusals


def _schemes(source: Http) -> Json:
    schemes: Json = {"token": {"type": "http", "scheme": "bearer"}} if source.tokens else {}
    if isinstance(source.verify, Hmac):
        schemes["signature"] = {"type": "apiKey", "in": "header", "name": source.verify.header}
    return schemes


def _security(source: Http) -> Json:
    schemes = _schemes(source)
    return {"security": [{name: [] for name in schemes}]} if schemes else {}


def _asked(summary: str, *codes: HTTPStatus) -> Json:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/State"}}}
    return {
        "summary": summary,
        "responses": {str(int(code)): {"description": code.phrase, "content": content} for code in codes},
    }
