"""Turn OTLP's values, which may be of any kind, into JSON and into text. Loads ``opentelemetry-proto``."""

from __future__ import annotations

import base64
import json
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue


def attributes_of(attributes: Iterable[KeyValue]) -> dict[str, object]:
    """Return attributes as JSON has them. Raises ValueError for one that is there twice."""
    found: dict[str, object] = {}
    for attribute in attributes:
        if attribute.key in found:
            raise ValueError(f"the attribute {attribute.key!r:.100} is there twice")
        found[attribute.key] = plain(attribute.value)
    return found


def plain(value: AnyValue) -> object:
    """Return a value as JSON has it: bytes as Base64, NaN and infinities as their names."""
    match kind := value.WhichOneof("value"):
        case "string_value" | "bool_value" | "int_value":
            return getattr(value, kind)
        case "double_value":
            return _number(value.double_value)
        case "bytes_value":
            return base64.b64encode(value.bytes_value).decode()
        case "array_value":
            return [plain(item) for item in value.array_value.values]
        case "kvlist_value":
            return attributes_of(value.kvlist_value.values)
        case _:
            if value.ByteSize():
                raise ValueError("a value is of a kind that is not known here")
            return None


def _number(number: float) -> float | str:
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def dumps(value: object) -> str:
    """Return a value as JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def text(value: AnyValue) -> str | None:
    """Return a value as text: a string and bytes (Base64) as they are, others as JSON; None if there is none."""
    match value.WhichOneof("value"):
        case "string_value":
            return value.string_value
        case "int_value":
            return str(value.int_value)
        case _:
            found = plain(value)
            return found if found is None or isinstance(found, str) else dumps(found)
