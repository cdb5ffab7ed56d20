"""Show a record as a line of JSON: bytes that are text as text, other bytes as ``{"base64": …}``.

A stream has either: an HTTP body is JSON for one sender and an image for the next. Records are never changed.
"""

from __future__ import annotations

import json
from base64 import b64encode
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def record_line(record: Mapping[str, object]) -> str:
    """Return the record as one line of JSON; control characters are escaped only as far as JSON demands it."""
    return json.dumps(record, default=_shown, ensure_ascii=False)


def _shown(value: object) -> object:
    if not isinstance(value, bytes):
        return str(value)
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(value).decode()}
