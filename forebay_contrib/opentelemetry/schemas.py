"""Describe OTLP's logs for the OpenAPI document: JSON schemas of the request, of its answer and of a refusal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from receiver_runtime.receivers.http.requests.route import BASE64_PATTERN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from receiver_runtime.receivers.http.requests.route import Json

SCHEMAS: Mapping[str, Json] = {
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
                ("bytesValue", {"type": "string", "pattern": BASE64_PATTERN}),
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
