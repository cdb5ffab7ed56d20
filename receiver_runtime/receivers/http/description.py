"""Makes the OpenAPI 3.1 document of a receiver's server from its source and its routes.

A fuzzer in the tests checks that a running server behaves as the document says of media types, limits and answers.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from receiver_runtime.receivers.http.protocols.cloud_events import BATCHED, STRUCTURED
from receiver_runtime.receivers.http.protocols.otlp_answers import PROTOBUF
from receiver_runtime.receivers.http.routes import STREAM_PATH

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from receiver_runtime.receivers.http.requests.route import Route
    from receiver_runtime.sources.declarations.http import Http

Json = dict[str, Any]

PATH = "/openapi.json"

_TEXT = r"^[^\x00-\x1f\x7f-\x9f]+$"
_BASE64 = r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
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
_RETRYABLE = frozenset({429, 503})


def _nullable(schema: Json) -> Json:
    return {**schema, "type": [schema["type"], "null"]}


_ATTRIBUTE: Json = {"type": "string", "pattern": _TEXT}

_SCHEMAS: Mapping[str, Json] = {
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
            "dead_letters": {"type": "integer", "minimum": 1, "description": "They can't be records; put aside."},
            "first_dead_letter": {"type": "string", "description": "Which one was the first, and why."},
        },
    },
    "State": {
        "type": "object",
        "required": ["status"],
        "properties": {"status": {"type": "string"}, "reason": {"type": "string"}},
    },
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
            "data_base64": _nullable({"type": "string", "contentEncoding": "base64", "pattern": _BASE64}),
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

_LOGS_SCHEMAS: Mapping[str, Json] = {
    "ExportLogsServiceRequest": {
        "description": "As OpenTelemetry defines it, with ids in hexadecimal. Unknown fields are ignored.",
        "type": "object",
        "properties": {
            "resourceLogs": {"type": "array", "items": {"$ref": "#/components/schemas/ResourceLogs"}},
        },
        "anyOf": [{"required": ["resourceLogs"]}, {"maxProperties": 0}],
    },
    "ResourceLogs": {
        "type": "object",
        "properties": {
            "resource": {"type": "object", "properties": {"attributes": {"$ref": "#/components/schemas/Attributes"}}},
            "scopeLogs": {"type": "array", "items": {"$ref": "#/components/schemas/ScopeLogs"}},
            "schemaUrl": {"type": "string"},
        },
    },
    "ScopeLogs": {
        "type": "object",
        "properties": {
            "scope": {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "version": {"type": "string"},
                    "attributes": {"$ref": "#/components/schemas/Attributes"},
                },
            },
            "logRecords": {"type": "array", "items": {"$ref": "#/components/schemas/LogRecord"}},
            "schemaUrl": {"type": "string"},
        },
    },
    "LogRecord": {
        "type": "object",
        "properties": {
            "timeUnixNano": {"type": "string", "pattern": "^[0-9]{1,19}$"},
            "observedTimeUnixNano": {"type": "string", "pattern": "^[0-9]{1,19}$"},
            "severityNumber": {"type": "integer", "minimum": 0, "maximum": 24},
            "severityText": {"type": "string"},
            "eventName": {"type": "string"},
            "body": {"$ref": "#/components/schemas/AnyValue"},
            "attributes": {"$ref": "#/components/schemas/Attributes"},
            "droppedAttributesCount": {"type": "integer", "minimum": 0, "maximum": 2**32 - 1},
            "flags": {"type": "integer", "minimum": 0, "maximum": 2**32 - 1},
            "traceId": {"type": "string", "pattern": "^([0-9A-Fa-f]{32})?$"},
            "spanId": {"type": "string", "pattern": "^([0-9A-Fa-f]{16})?$"},
        },
    },
    "Attributes": {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {"key": {"type": "string"}, "value": {"$ref": "#/components/schemas/AnyValue"}},
        },
    },
    "AnyValue": {
        "oneOf": [
            {
                "type": "object",
                "required": [name],
                "properties": {name: schema},
                "additionalProperties": False,
            }
            for name, schema in (
                ("stringValue", {"type": "string"}),
                ("boolValue", {"type": "boolean"}),
                ("intValue", {"type": "string", "pattern": "^-?[0-9]{1,18}$"}),
                ("doubleValue", {"type": "number"}),
                ("bytesValue", {"type": "string", "pattern": _BASE64}),
                (
                    "arrayValue",
                    {
                        "type": "object",
                        "properties": {"values": {"type": "array", "items": {"$ref": "#/components/schemas/AnyValue"}}},
                    },
                ),
                (
                    "kvlistValue",
                    {"type": "object", "properties": {"values": {"$ref": "#/components/schemas/Attributes"}}},
                ),
            )
        ]
    },
    "ExportLogsServiceResponse": {
        "type": "object",
        "properties": {
            "partialSuccess": {
                "type": "object",
                "required": ["rejectedLogRecords", "errorMessage"],
                "properties": {
                    "rejectedLogRecords": {"type": "string", "pattern": "^[0-9]+$"},
                    "errorMessage": {"type": "string"},
                },
            }
        },
    },
    "Status": {"type": "object", "required": ["message"], "properties": {"message": {"type": "string"}}},
}

#: The schema of each media type of a stream's path.
_BODIES: Mapping[str, Json] = {
    "application/json": {
        "description": "One record, or an array of records.",
        "anyOf": [
            {"type": "array", "minItems": 1},
            {"type": ["object", "string", "number", "boolean", "null"]},
        ],
    },
    "application/x-ndjson": {"description": "A record of JSON a line.", "type": "string", "minLength": 1},
    "text/plain": {"description": "A record a line.", "type": "string", "pattern": r"[^ \t\r\n]"},
    "application/octet-stream": {"description": "One record.", "type": "string", "format": "binary", "minLength": 1},
    STRUCTURED: {"$ref": "#/components/schemas/CloudEvent"},
    BATCHED: {"type": "array", "items": {"$ref": "#/components/schemas/CloudEvent"}},
}


def describe(source: Http, stream: str, routes: Sequence[Route]) -> Json:
    """Return the document. ``stream`` is empty where the stream's name is not known."""
    paths: Json = {}
    schemas = dict(_SCHEMAS)
    for route in routes:
        if route.path == STREAM_PATH:
            path = paths.setdefault(f"/v1/{stream}" if stream else route.path, _stream_path(source, stream))
            path["post"]["requestBody"]["content"] |= {
                media_type: {"schema": _BODIES[media_type]} for media_type in route.media_types
            }
        else:
            schemas |= _LOGS_SCHEMAS
            paths[route.path] = _logs_path(source)
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
    if source.tokens:
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    return document


def _stream_path(source: Http, stream: str) -> Json:
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
                {
                    "name": "Idempotency-Key",
                    "in": "header",
                    "description": "The same key within the stream's window is stored once.",
                    "schema": {"type": "string", "pattern": _KEY, "not": {"const": '""'}},
                },
            ],
            "requestBody": {"required": True, "content": {}},
            "responses": {
                "200": {"description": "The records are in a registered block.", "content": taken},
                "202": {"description": "With `ack=buffered`: the records will be stored.", "content": taken},
                **_refusals(source, problem),
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


def _logs_path(source: Http) -> Json:
    def both(name: str) -> Json:
        schema = {"$ref": f"#/components/schemas/{name}"}
        return {"application/json": {"schema": schema}, PROTOBUF: {"schema": {"type": "string", "format": "binary"}}}

    return {
        "post": {
            "operationId": "exportLogs",
            "summary": "OTLP/HTTP: export logs of OpenTelemetry.",
            "description": "The answer has the request's media type.",
            "requestBody": {"required": True, "content": both("ExportLogsServiceRequest")},
            "responses": {
                "200": {
                    "description": "The records are in a registered block, except those of partialSuccess.",
                    "content": both("ExportLogsServiceResponse"),
                },
                **_refusals(source, both("Status")),
            },
            **_security(source),
        }
    }


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
    if source.tokens:
        refusals["401"] = {
            "description": "There is no token, or it is not one of the stream's.",
            "headers": {"WWW-Authenticate": {"required": True, "schema": {"type": "string"}}},
            "content": content,
        }
    else:
        refusals["403"] = {"description": "A web page of another site sends it: see Origin.", "content": content}
    return refusals


def _security(source: Http) -> Json:
    return {"security": [{"token": []}]} if source.tokens else {}


def _asked(summary: str, *codes: HTTPStatus) -> Json:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/State"}}}
    return {
        "summary": summary,
        "responses": {str(int(code)): {"description": code.phrase, "content": content} for code in codes},
    }
