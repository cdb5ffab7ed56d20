"""Describe OTLP for the OpenAPI document: JSON schemas of requests, of their answers and of a refusal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay_contrib.opentelemetry.json_form import as_in_otlp
from forebay_contrib.opentelemetry.signals import Level
from receiver_runtime.receivers.http.requests.route import BASE64_PATTERN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forebay_contrib.opentelemetry.signals import Signal
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


def schemas_of(signal: Signal) -> Mapping[str, Json]:
    """Return the schemas of a signal: of logs in full, of others what tells their requests from others."""
    if signal.name == "logs":
        return SCHEMAS
    request, first = signal.kinds[Level.REQUEST].DESCRIPTOR.name, as_in_otlp(signal.fields[Level.REQUEST])
    counts = {signal.rejected: {"type": "string", "pattern": "^[0-9]+$"}, "errorMessage": {"type": "string"}}
    partial = {"type": "object", "required": list(counts), "properties": counts}
    return {
        request: {
            "description": "As OpenTelemetry defines it, with ids in hexadecimal. Unknown fields are ignored.",
            "type": "object",
            "properties": {first: {"type": "array", "items": {"type": "object"}}},
            "anyOf": [{"required": [first]}, {"maxProperties": 0}],
        },
        request.replace("Request", "Response"): {"type": "object", "properties": {"partialSuccess": partial}},
        "Status": SCHEMAS["Status"],
    }
